#!/bin/sh
# For Doxygen: plain comments of a header as comments that document. The first belongs to the file, those behind a member to it, also where they
# go on in the next line. What looks like a tag is text.
exec awk '
  /^ *\/\// {
    at = match($0, /\/\//)
    comment = substr($0, at + 2)
    gsub(/</, "\\<", comment)
    if (NR == 1) print "/// \\file"
    behind = at == column
    print substr($0, 1, at - 1) (behind ? "///<" : "///") comment
    if (!behind) column = 0
    next
  }
  {
    column = 0
    if (match($0, /^ *[^ #}].*[;,}] *\/\/ /)) { column = RLENGTH - 2; $0 = substr($0, 1, RLENGTH - 3) "///<" substr($0, RLENGTH) }
    print
  }' "$1"
