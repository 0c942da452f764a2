# Containers: stops those that run, or those that are named, and keeps them stopped. Undone: starts them.
program=$1
shift
place=/var/lib/slipway-drained-$program
if [ "$SLIPWAY_UNDO" = 1 ]; then
    [ -e "$place" ] || { echo 'no container was stopped'; exit 0; }
    while read -r container policy; do
        "$program" update --restart="$policy" "$container" >/dev/null 2>&1
        "$program" start "$container" || exit 1
    done <"$place"
    rm -f "$place"
    exit 0
fi
if [ "$SLIPWAY_CORDON_ONLY" = 1 ]; then echo 'containers take no orders to refuse work; left running'; exit 0; fi
containers=${*:-$("$program" ps --quiet)}
for container in $containers; do
    policy=$("$program" inspect --format '{{.HostConfig.RestartPolicy.Name}}' "$container") || exit 1
    grep -qs "^$container " "$place" || echo "$container ${policy:-no}" >>"$place"
    "$program" update --restart=no "$container" >/dev/null 2>&1
done
failed=0
for container in $containers; do
    echo "stopping $container"
    "$program" stop --time "$SLIPWAY_SECONDS" "$container" >/dev/null || failed=1
done
left=$("$program" ps --format '{{.Names}}' | tr '\n' ' ')
[ -z "$*" ] && [ -n "$left" ] && { echo "still runs: $left"; exit 1; }
[ "$failed" = 0 ] && echo 'all containers are stopped'
exit "$failed"
