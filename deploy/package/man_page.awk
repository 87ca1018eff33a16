# Turns what a program prints for --help into a manual page. Variables: name, version.
#
# The input is a line with the program's name and what it does, further lines of usage, exit codes,
# and flags:
#
#   ps-server: A gradient-sync server.
#
#   Exit codes:
#     0    all jobs are done, or
#          a signal has stopped it
#
#     Flags from server/ps_server_main.cc:
#       --port (port to listen on;
#         0 picks a free port); default: 7000;

# Escapes what troff would interpret.
function plain(text) {
  gsub(/\\/, "\\e", text)
  gsub(/-/, "\\-", text)
  if (text ~ /^[.']/) text = "\\&" text
  return text
}

function end_flag() {
  if (flag == "") return
  default_value = ""
  if (match(help, /\); default: /)) {
    default_value = substr(help, RSTART + RLENGTH)
    help = substr(help, 1, RSTART - 1)
    sub(/;$/, "", default_value)
  }
  print ".TP"
  print "\\fB" plain(flag) "\\fR" \
      (default_value == "" || default_value == "\"\"" ? "" : " (default: " plain(default_value) ")")
  print plain(help)
  flag = ""
}

NR == 1 {
  what = $0
  sub(/^[^:]*: */, "", what)
  sub(/\.$/, "", what)
  printf ".TH %s 1 \"\" \"syncgrads %s\" \"User Commands\"\n", toupper(plain(name)), version
  print ".SH NAME\n" plain(name) " \\- " plain(tolower(substr(what, 1, 1)) substr(what, 2))
  print ".SH DESCRIPTION\n.nf"
  print plain($0)
  next
}
/^ *Flags from / {
  if (!flags) print ".fi\n.SH OPTIONS"
  flags = 1
  next
}
# The section "EXIT STATUS" comes after the options.
!flags && /^Exit codes.*:$/ { codes = 1; next }
!flags && codes && /^ *[0-9N]+  / {
  code = $1
  sub(/^ *[0-9N]+ */, "")
  exit_status = exit_status "\n.TP\n\\fB" code "\\fR\n" plain($0)
  next
}
!flags && codes {
  sub(/^ */, "")
  if ($0 != "") exit_status = exit_status "\n" plain($0)
  next
}
/^Try --helpfull/ { exit }
!flags { print plain($0); next }
/^ *--[a-z_]+ \(/ {
  end_flag()
  flag = $1
  help = $0
  sub(/^ *--[a-z_]+ \(/, "", help)
  next
}
flag != "" && NF {
  sub(/^ */, "")
  help = help " " $0
}
END {
  end_flag()
  print ".TP\n\\fB\\-\\-help\\fR\nPrints the flags and exits."
  print ".TP\n\\fB\\-\\-version\\fR"
  print "Prints the version, the commit, the versions of CUDA and gRPC, and exits."
  if (exit_status != "") print ".SH EXIT STATUS" exit_status
}
