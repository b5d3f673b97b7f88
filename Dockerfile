# decodepool's images: `docker build --target worker-cpu|worker-cuda|operator|gateway .`
#
# BASE is any small image with Python 3.11 or newer, its venv module, a shell and CA certificates. The secret `ca`, which
# may be left out, is a bundle of certificates for building behind a proxy; nothing of it stays in an image.
# Layers go from what changes least to what changes most: a base, locked dependencies, compiled kernels, these sources.
# There is no `# syntax=` line: it would pull BuildKit's frontend, and what is used here is in BuildKit itself.
ARG BASE=python:3.11-slim-bookworm

# What builds: uv installs what uv.lock says, asking up to six times more where the network is away; hatchling makes the
# project's wheel.
FROM ${BASE} AS tools
ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PIP_CERT=/etc/ssl/certs/ca-certificates.crt \
    PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 \
    UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1 UV_HTTP_RETRIES=6 PYC_INVALIDATION_MODE=UNCHECKED_HASH HOME=/root \
    PATH=/opt/tools/bin:/usr/local/bin:/usr/bin:/bin
RUN --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    python3 -m venv /opt/tools && pip install --quiet uv==0.13.9 hatchling==1.33.0
WORKDIR /src

# The lock, a file for each image: a change of pyproject.toml that changes none of them costs nothing below.
# tokenizers would bring a client of the Hugging Face hub, which no worker calls.
FROM tools AS locked
COPY pyproject.toml uv.lock ./
RUN for extra in worker cuda operator gateway; do \
      uv export --quiet --frozen --no-dev --no-emit-project --no-header --prune huggingface-hub --extra $extra \
        --output-file /locked/$extra.txt || exit 1; \
    done

# An environment of locked dependencies, which finds the project in a folder of its own. `trim` takes away a fifth that is
# never imported: packages' own tests, and the second copy of the Kubernetes client.
FROM tools AS environment
RUN python3 -m venv --without-pip /opt/venv \
    && (cd /opt/venv/lib/python3*/site-packages && echo /opt/decodepool > decodepool.pth) \
    && printf '%s\n' '#!/bin/sh' \
      "find /opt/venv -type d '(' -name tests -o -path '*/kubernetes/aio' ')' -prune -exec rm -rf {} +" > /opt/tools/bin/trim \
    && chmod +x /opt/tools/bin/trim
ENV UV_PYTHON=/opt/venv/bin/python

FROM environment AS worker-environment
COPY --from=locked /locked/worker.txt ./
RUN --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt --mount=type=cache,target=/root/.cache/uv \
    uv pip sync --quiet --require-hashes worker.txt && trim

FROM environment AS cuda-environment
COPY --from=locked /locked/cuda.txt ./
RUN --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt --mount=type=cache,target=/root/.cache/uv \
    uv pip sync --quiet --require-hashes cuda.txt && trim

FROM environment AS operator-environment
COPY --from=locked /locked/operator.txt ./
RUN --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt --mount=type=cache,target=/root/.cache/uv \
    uv pip sync --quiet --require-hashes operator.txt && trim

FROM environment AS gateway-environment
COPY --from=locked /locked/gateway.txt ./
RUN --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt --mount=type=cache,target=/root/.cache/uv \
    uv pip sync --quiet --require-hashes gateway.txt && trim

# The project, from its wheel. Times are set to one that survives an image: compiled kernels belong to their source's.
FROM environment AS project
COPY LICENSE README.md pyproject.toml ./
COPY sizing sizing
COPY kernels kernels
COPY web web
COPY worker worker
COPY gateway gateway
COPY operator operator
COPY cli cli
RUN python3 -P -m hatchling build --target wheel --directory /wheel \
    && uv pip install --quiet --no-deps --target /opt/decodepool /wheel/*.whl \
    && find /opt/decodepool -exec touch --no-dereference --date=@1700000000 {} +

# The CPU engine's kernels, compiled for the CPU that builds; on another a worker compiles its own into XDG_CACHE_HOME.
FROM worker-environment AS kernels
COPY --from=project /opt/decodepool/decodepool_sizing /opt/decodepool/decodepool_sizing
COPY --from=project /opt/decodepool/decodepool_kernels/__init__.py /opt/decodepool/decodepool_kernels/__init__.py
COPY --from=project /opt/decodepool/decodepool_kernels/cpu /opt/decodepool/decodepool_kernels/cpu
RUN XDG_CACHE_HOME=/opt/venv/share /opt/venv/bin/python -P -c \
    "from decodepool_kernels.cpu.compiling import compile_here; compile_here()"

# What runs: nothing but Python, as a user that no file names (USER is for libraries that ask), on a root that may be
# read-only.
FROM ${BASE} AS runtime
ENV PATH=/opt/decodepool/bin:/opt/venv/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp USER=decodepool
USER 65532:65532

FROM runtime AS worker-cpu
COPY --from=worker-environment /opt/venv /opt/venv
COPY --from=kernels /opt/venv/share/decodepool /opt/venv/share/decodepool
COPY --from=project /opt/decodepool /opt/decodepool
ENTRYPOINT ["decodepool"]

FROM runtime AS worker-cuda
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=cuda-environment /opt/venv /opt/venv
COPY --from=kernels /opt/venv/share/decodepool /opt/venv/share/decodepool
COPY --from=project /opt/decodepool /opt/decodepool
ENTRYPOINT ["decodepool"]

FROM runtime AS operator
COPY --from=operator-environment /opt/venv /opt/venv
COPY --from=project /opt/decodepool /opt/decodepool
ENTRYPOINT ["python", "-m", "decodepool_operator"]

FROM runtime AS gateway
COPY --from=gateway-environment /opt/venv /opt/venv
COPY --from=project /opt/decodepool /opt/decodepool
ENTRYPOINT ["python", "-m", "decodepool_gateway"]
