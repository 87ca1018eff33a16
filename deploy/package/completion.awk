# Turns what a program prints for --help into a completion for bash: flags, and the commands that
# the usage lines show ("NAME [FLAG...] COMMAND [NAME-OF-A-SETTING] ..."). Variable: name.

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
  for (i = 2; i <= NF && $i ~ /^[-[]/; ++i) continue
  if ($i ~ /^[a-z]+$/) add_word($i)
  for (++i; i <= NF && $i ~ /^[a-z]+-[a-z-]+$/; ++i) add_word($i)
}
/^ *Flags from / { flags = 1 }
END {
  end_flag()
  print "# bash completion for " name
  printf "complete -o default -o nospace -W \"%s\" %s\n", substr(words, 2), name
}
