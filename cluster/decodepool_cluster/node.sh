# The first process of a node: containerd and kubelet in a PID and mount namespace of their own, restarted when they end.
# NODE is the node's folder, NAME and ADDRESS are the node's, IMAGES the folder of archives that it imports.
set -eu
mount -t tmpfs tmpfs /run
mount --bind "$NODE/lib" /var/lib
mount --bind "$NODE/log" /var/log
# kubelet insists on changing these: it changes a copy of the node's own, not the machine's.
for setting in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops \
    kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
  copy="$NODE/sys/$(basename "$setting")"
  cat "/proc/sys/$setting" > "$copy"
  mount --bind "$copy" "/proc/sys/$setting"
done
respawn() { while :; do "$@" || true; sleep 1; done; }
respawn containerd --config "$NODE/containerd.toml" &
until ctr version > /dev/null 2>&1; do sleep 0.1; done
# An archive's stamp says which it is: what was imported before a loss of power is not imported again.
for stamp in "$IMAGES"/*.stamp; do
  mark="$NODE/lib/$(basename "$stamp")"
  cmp -s "$stamp" "$mark" || { ctr -n k8s.io images import "${stamp%.stamp}.tar"; cp "$stamp" "$mark"; }
done
respawn kubelet --config="$NODE/kubelet.json" --kubeconfig="$NODE/kubeconfig" \
  --hostname-override="$NAME" --node-ip="$ADDRESS" &
wait
