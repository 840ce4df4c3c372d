# The server, without root and without a compiler. docs/how-to/production.md says how to run it.
# docker build --tag fieldwise .

FROM python:3.13-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /source
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CONSTRAINT=/source/constraints.txt
RUN python -m venv /opt/fieldwise
ENV PATH=/opt/fieldwise/bin:$PATH
COPY constraints.txt ./
# PyTorch first, a layer of its own. PyPI's build brings several GB of CUDA libraries: `--build-arg TORCH_INDEX=URL` with
# PyTorch's index of CPU builds leaves them out.
ARG TORCH_INDEX
RUN pip install ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} "$(grep '^torch==' constraints.txt)"
COPY pyproject.toml CMakeLists.txt README.md LICENSE ./
COPY native native
COPY src src
ARG EXTRAS=serve,redis,postgresql
RUN pip install ".[$EXTRAS]"

FROM python:3.13-slim
RUN useradd --uid 10001 --create-home fieldwise
COPY --from=build /opt/fieldwise /opt/fieldwise
ENV PATH=/opt/fieldwise/bin:$PATH OMP_WAIT_POLICY=PASSIVE
USER fieldwise
WORKDIR /srv
EXPOSE 8000
HEALTHCHECK --start-period=60s --timeout=5s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["fieldwise", "serve", "--host", "0.0.0.0", "--port", "8000"]
CMD ["/srv/bundle"]
