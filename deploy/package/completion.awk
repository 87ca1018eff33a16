# Turns what a program prints for --help into a completion for bash: flags, and the commands that
# the usage lines show ("NAME [FLAG...] COMMAND [WORD] ...", in lower case, up to two spaces).
# Variable: name.

function add_word(word) {
  if (!seen[word]++) words = words " " word
}

function end_flag() {
  if (flag == "") return
  # A flag with a value ends with "=". A boolean flag needs none.
  words = words " " flag (help ~ /default: (true|false);/ ? "" : "=")
  flag = ""
}

/^ *--[a-z_]+ \(/ {
  end_flag()
  flag = $1
  help = $0
  next
}
flag != "" { help = help " " $0 }
!flags && $1 == name {
  line = $0
  sub(/^ */, "", line)
  sub(/  .*/, "", line)
  fields = split(line, field, " ")
  for (i = 2; i <= fields && field[i] ~ /^[-[]/; ++i) continue
  for (; i <= fields && field[i] ~ /^[a-z][a-z-]*$/; ++i) add_word(field[i])
}
/^ *Flags from / { flags = 1 }
END {
  end_flag()
  print "# bash completion for " name
  printf "complete -o default -o nospace -W \"%s\" %s\n", substr(words, 2), name
}
