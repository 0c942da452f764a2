# Containers: stops those that run, or those that are named, and keeps them stopped. Undone: starts them.
program=$1
shift
place=/var/lib/slipway-drained-$program
if [ "$SLIPWAY_UNDO" = 1 ]; then
    [ -e "$place" ] || { echo 'no container was stopped'; exit 0; }
    "$program" ps >/dev/null || exit 1
    failed=0
    while read -r container policy; do
        # One that was removed meanwhile cannot be started.
        "$program" inspect "$container" >/dev/null 2>&1 || continue
        "$program" update --restart="$policy" "$container" >/dev/null 2>&1
        "$program" start "$container" || failed=1
    done <"$place"
    [ "$failed" = 0 ] && rm -f "$place"
    exit "$failed"
fi
if [ "$SLIPWAY_CORDON_ONLY" = 1 ]; then echo 'containers take no orders to refuse work; left running'; exit 0; fi
containers=$*
if [ -z "$containers" ]; then containers=$("$program" ps --quiet --no-trunc) || exit 1; fi
for container in $containers; do
    policy=$("$program" inspect --format '{{.HostConfig.RestartPolicy.Name}}' "$container") || exit 1
    grep -qs "^$container " "$place" || echo "$container ${policy:-no}" >>"$place"
    # Older podman cannot change it, and starts none again that was stopped.
    "$program" update --restart=no "$container" >/dev/null 2>&1
    "$program" kill --signal=TERM "$container" >/dev/null
done
# Says which of them run. That nobody can tell is no reason to believe that they have stopped.
runs() {
    running=$("$program" ps --no-trunc --format '{{.ID}} {{.Names}}') || return 1
    for container in $containers; do
        for known in $running; do
            if [ "$known" = "$container" ]; then printf ' %s' "$container"; fi
        done
    done
}
end=$(($(date +%s) + SLIPWAY_SECONDS))
while :; do
    left=$(runs) || exit 1
    [ -n "$left" ] || break
    echo "still runs:$left"
    if [ "$(date +%s)" -ge "$end" ]; then
        [ "$SLIPWAY_FORCE" = 1 ] || exit 1
        "$program" kill $left >/dev/null
    fi
    sleep 1
done
echo 'all containers are stopped'
