# docker build -t ckptcheck . && docker run --rm -v "$PWD/my-model:/model:ro" ckptcheck scan /model
FROM python:3.13-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY . /source
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /source

FROM python:3.13-slim
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir /wheels/*.whl && rm -r /wheels && useradd --create-home checker
USER checker
WORKDIR /home/checker
ENTRYPOINT ["ckptcheck"]
CMD ["--help"]
