# `transformers serve` for a processor, as compose.cpu.yml starts it.
#   docker build -f docker/transformers.Dockerfile -t scenario-router-transformers:local docker
ARG BASE=python:3.13.8-slim-bookworm
FROM ${BASE}

# torch for x86-64 brings several GB for GPUs along. An index with its builds for processors
# alone makes the image a fifth of that: --build-arg TORCH_INDEX=https://…
ARG TORCH_INDEX=""
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
# Both are pinned; the linter stumbles over what may stand before them.
# hadolint ignore=DL3013
RUN pip install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch==2.13.0 \
    && pip install 'transformers[serving]==5.24.0'

# A numeric user has no entry in /etc/passwd; torch asks for its name.
ENV HF_HOME=/var/cache/huggingface \
    HF_HUB_DISABLE_TELEMETRY=1 \
    HOME=/tmp \
    USER=transformers \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
RUN install -d -o 10001 -g 10001 -m 0750 /var/cache/huggingface
VOLUME ["/var/cache/huggingface"]

USER 10001:10001
WORKDIR /tmp
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=900s --retries=3 \
    CMD ["python", "-I", "-c", "import http.client as h; c = h.HTTPConnection('127.0.0.1', 8000, timeout=4); c.request('GET', '/health'); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["transformers", "serve"]
CMD ["Qwen/Qwen3-0.6B", "--host", "0.0.0.0", "--port", "8000", "--device", "cpu", "--dtype", "bfloat16"]
