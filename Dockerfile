# docker build -t specdemo . && docker run -p 7860:7860 -v specdemo:/home/user/data specdemo
FROM python:3.12-slim

# a C++ compiler is what torch.compile needs on the CPU; without one everything but --compile works
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*

RUN useradd --create-home --uid 1000 user \
    && mkdir -p /home/user/app /home/user/data \
    && chown -R user:user /home/user
USER 1000
WORKDIR /home/user/app
ENV HOME=/home/user \
    PATH=/home/user/.local/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PIP_NO_CACHE_DIR=1 \
    SPECDEMO_HOME=/home/user/data \
    HF_HOME=/home/user/data/huggingface \
    GRADIO_SERVER_NAME=0.0.0.0 \
    GRADIO_SERVER_PORT=7860

# the build without CUDA: 200 MB instead of several GB
RUN pip install --user --index-url https://download.pytorch.org/whl/cpu "torch>=2.8,<2.14"

COPY --chown=user . .
RUN pip install --user .

EXPOSE 7860
VOLUME /home/user/data
HEALTHCHECK --interval=30s --timeout=5s --start-period=120s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:7860/', timeout=4)"]
CMD ["python", "app.py"]
