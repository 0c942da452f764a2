#!/bin/sh
# Runs a check in an installed system and reports it by the serial port. The server fills in the values with @.
id=@ID@ command=@COMMAND@ most=@MOST@

folder=$(mktemp -d)
echo "$command" | base64 -d > "$folder/check"
sh "$folder/check" > "$folder/out" 2>&1 < /dev/null
status=$?

serial=/dev/ttyS0
[ -c /dev/ttyAMA0 ] && serial=/dev/ttyAMA0
# The kernel would write into the lines of the report. Programs do not: each line is short enough to be written at once.
dmesg -n 1 2> /dev/null
{
    tail -c "$most" "$folder/out" | base64 -w 900 | sed "s/^/out /"
    # The last line of base64 has no end.
    echo
    echo "end $status"
} | while IFS= read -r line; do
    printf '\nslipway-check %s %s\n' "$id" "$line"
done > "$serial"
rm -r "$folder"
