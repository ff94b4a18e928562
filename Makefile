# The two commands of a newcomer are `make run` and `make test`; each installs
# what lacks (as root or with sudo; otherwise it says what to install).

GO      ?= go
# The MPI library to build with: openmpi or mpich; found by pkg-config.
MPI     ?= $(shell pkg-config --exists ompi 2>/dev/null && echo openmpi || { pkg-config --exists mpich 2>/dev/null && echo mpich; } || echo openmpi)
TAG     := $(if $(filter mpich,$(MPI)),mpich,mpi)
NP      ?= 4
GRADS   ?= testdata/bytes_gpt_w4_f32/rank{rank}.safetensors
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LDFLAGS := -X main.version=$(VERSION)
MPIRUN  := .ci/mpirun $(MPI)
# NVML's header marks old functions as deprecated, which go-nvml binds all the same.
export CGO_CFLAGS := -O2 -g -Wno-deprecated-declarations

.PHONY: build run test check bench kernels check-kernels test-slurm test-gpu gpu-bundle setup clean help

build: setup ## bin/ddpstep
	$(GO) build -tags $(TAG) -ldflags '$(LDFLAGS)' -o bin/ddpstep ./cmd/ddpstep
	$(GO) build -ldflags '-extldflags=-Wl,-z,lazy' -o bin/ddpstep-nvml ./cmd/ddpstep-nvml

run: build ## the job on real gradients, on four ranks
	$(MPIRUN) -n $(NP) bin/ddpstep run --grads '$(GRADS)' --steps 5

test: ## every test that this machine can run
	.ci/setup test
	$(GO) build ./... && $(GO) vet ./...
	$(GO) test -timeout 40m ./...

check: ## the gate: format, vet, staticcheck, known vulnerabilities, import arrows, kernels
	.ci/setup test
	.ci/check

bench: build ## the fixed order beside MPI_Allreduce, on 2 and 4 ranks, and memory
	$(MPIRUN) -n 2 bin/ddpstep bench --dtype float32,float64 --reducers fixed,fixed:mpi,mpi
	$(MPIRUN) -n 4 bin/ddpstep bench --dtype float32,float64 --reducers fixed,fixed:mpi,mpi
	$(MPIRUN) -n 2 bin/ddpstep run --model gpt2 --check off --steps 3 --transport shm
	$(MPIRUN) -n 2 bin/ddpstep run --model gpt2 --check off --steps 3 --transport mpi

kernels: ## kernels/*.ptx from kernels/*.cu, with clang (NVCC=nvcc: native code in bin/kernels)
ifdef NVCC
	NVCC=$(NVCC) kernels/build.sh native $(CURDIR)/bin/kernels $(or $(ARCH),90)
else
	kernels/build.sh ptx
endif

test-slurm: ## the job scripts on a private Slurm
	.ci/setup test
	$(GO) test -count=1 -v -timeout 20m -run 'Slurm|Cluster' ./slurm ./internal/slurmtest

test-gpu: ## the tests against the real GPUs of this machine
	.ci/test-gpu

gpu-bundle: build ## all that a GPU machine without Go needs, in gpu-bundle/
	.ci/gpu-bundle '$(TAG)' '$(LDFLAGS)'

setup:
	@.ci/setup run

clean:
	rm -rf bin gpu-bundle

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 24
