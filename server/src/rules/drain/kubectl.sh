# A node of Kubernetes: takes no new pods, and evicts those that it has. Undone: takes pods again.
node=${1:-$(cat /etc/hostname)}
if [ -n "$2" ]; then
    export KUBECONFIG="$2"
elif [ -e /etc/kubernetes/kubelet.conf ]; then
    export KUBECONFIG=/etc/kubernetes/kubelet.conf
fi
kubectl=kubectl
command -v kubectl >/dev/null || kubectl='k3s kubectl'
if [ "$SLIPWAY_UNDO" = 1 ]; then exec $kubectl uncordon "$node"; fi
if [ "$SLIPWAY_CORDON_ONLY" = 1 ]; then exec $kubectl cordon "$node"; fi
force=
# Pods that nothing starts elsewhere, and data in empty folders, are lost.
[ "$SLIPWAY_FORCE" = 1 ] && force='--force --delete-emptydir-data'
$kubectl drain "$node" --ignore-daemonsets --timeout="${SLIPWAY_SECONDS}s" $force && exit 0
echo "still runs: $($kubectl get pods --all-namespaces --field-selector "spec.nodeName=$node" --no-headers |
    awk '{ printf "%s%s/%s", sep, $1, $2; sep = " " }')"
exit 1
