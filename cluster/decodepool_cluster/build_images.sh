# Builds images with a Docker daemon that lives in namespaces of its own: when this shell ends, its processes and mounts
# are gone. Arguments: the Dockerfile's targets. SOURCE is the repository, BASE the archive of a root file system, DATA the
# daemon's folder, CGROUP its cgroup, OUT the archive to write.
set -eu
mount -t tmpfs tmpfs /run
# Debian's own client, which has BuildKit in it: a newer one, elsewhere on the path, wants a plugin.
export DOCKER_HOST=unix:///run/docker.sock DOCKER_BUILDKIT=1 PATH=/usr/sbin:/usr/bin:/sbin:/bin
mkdir -p "$DATA"
echo '{"builder": {"gc": {"enabled": true, "defaultKeepStorage": "4GB"}}}' > "$DATA.json"
dockerd --config-file "$DATA.json" --data-root "$DATA" --cgroup-parent "/$CGROUP" \
  --bridge=none --iptables=false --ip-forward=false --ip-masq=false > "$DATA.log" 2>&1 &
daemon=$!
until docker version > /dev/null 2>&1; do
  kill -0 $daemon 2> /dev/null || { tail -n 3 "$DATA.log" >&2; exit 1; }
  sleep 0.1
done
base=localhost/decodepool-base:$(basename "$BASE" .tar)
docker image inspect "$base" > /dev/null 2>&1 || docker import "$BASE" "$base" > /dev/null
images=
for target in "$@"; do
  image=localhost/decodepool-$target:dev
  docker build --progress=plain --network=host --build-arg BASE="$base" --target "$target" --tag "$image" \
    --secret id=ca,src=/etc/ssl/certs/ca-certificates.crt "$SOURCE"
  images="$images $image"
done
# shellcheck disable=SC2086 - a list
docker save --output "$OUT" $images
docker image prune --force > /dev/null
kill $daemon
wait $daemon || true
