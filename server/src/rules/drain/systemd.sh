# Units: stops them, and waits until they have stopped. Undone: starts them.
if [ "$SLIPWAY_UNDO" = 1 ]; then exec systemctl start -- "$@"; fi
if [ "$SLIPWAY_CORDON_ONLY" = 1 ]; then echo "units take no orders to refuse work; left running: $*"; exit 0; fi
systemctl stop --no-block -- "$@" || exit 1
runs() {
    for unit in "$@"; do
        case $(systemctl show --property=ActiveState --value -- "$unit") in
        active | activating | deactivating | reloading) printf ' %s' "$unit" ;;
        esac
    done
}
end=$(($(date +%s) + SLIPWAY_SECONDS))
while left=$(runs "$@") && [ -n "$left" ]; do
    echo "still runs:$left"
    if [ "$(date +%s)" -ge "$end" ]; then
        [ "$SLIPWAY_FORCE" = 1 ] || exit 1
        systemctl kill --signal=SIGKILL -- $left
    fi
    sleep 1
done
echo "stopped: $*"
