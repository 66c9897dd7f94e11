# dmuon-train: one Makefile, not recursive. Options: CUDA=1, DEBUG=1, SAN=address,undefined, V=1.
# One build directory per combination of options, so objects never mix.

# As many jobs as cores, unless the command says how many; a make below this one shares its jobs.
ifeq ($(MAKELEVEL)$(filter -j%,$(MAKEFLAGS)),0)
MAKEFLAGS += -j$(shell nproc)
endif

CC      = gcc
COMMA  := ,
VARIANT = $(if $(DEBUG),debug,release)$(if $(CUDA),-cuda)$(if $(SAN),-$(subst $(COMMA),-,$(SAN)))
BUILD   = build/$(VARIANT)
BINDIR  = $(if $(CUDA)$(DEBUG)$(SAN),$(BUILD)/bin,bin)
PREFIX ?= /usr/local
# Debian's own python: the one that python3-pytest and python3-numpy are installed for.
PYTHON ?= /usr/bin/python3
Q       = $(if $(V),,@)

WARN    = -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wvla -Wmissing-prototypes -Werror
OPT     = $(if $(DEBUG),-O1,-O3) $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all)
# -ffp-contract=off: a fused multiply-add is always written out (README, "Numerics").
CFLAGS  = -std=c17 -D_GNU_SOURCE -g $(OPT) -ffp-contract=off -fno-math-errno $(WARN) -Isrc -I. -pthread $(if $(CUDA),-DDM_CUDA)
MPI_CFLAGS = $(shell pkg-config --cflags ompi-c 2>/dev/null | sed 's/-I/-isystem /g')
LIBS    = $(shell pkg-config --libs ompi-c) -lyaml -lcjson -lm $(if $(CUDA),$(CUDA_LIBS))

# The CUDA backend: NVIDIA's toolkit and NCCL are not Debian's. The run-time library is a shared one, found through RUNPATH,
# so that LD_LIBRARY_PATH can name another. One release is built and tested.
CUDA_HOME   ?= /usr/local/cuda
CUDA_RELEASE = 13.0
CUDA_LIBS    = -L$(CUDA_HOME)/lib64 -Wl,-rpath,$(CUDA_HOME)/lib64 -Wl,--enable-new-dtags -lcudart -lcublasLt -lnccl
NVCC         = $(CUDA_HOME)/bin/nvcc
# Exact arithmetic as on the CPU; code for sm_80 and sm_90, and PTX of the latter for newer ones.
NVCCFLAGS    = -std=c++17 -O3 --fmad=false --ftz=false --prec-div=true --prec-sqrt=true -I. -t 2 -Wno-deprecated-gpu-targets \
               -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=[sm_90,compute_90] \
               -Xcompiler -Wall,-Wextra,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics

DEBS    = gcc libc6-dev pkg-config libopenmpi-dev openmpi-bin openssh-client libyaml-dev libcjson-dev libcmocka-dev \
          python3 python3-pytest python3-numpy
DEBS_LINT = cppcheck clang-format
DEBS_DIST = iproute2
DEBS_BENCH = libopenblas-dev
DEBS_FUZZ = clang libclang-rt-14-dev
DEBS_SLURM = slurm-wlm munge

CUDA_SRC = $(sort $(wildcard src/device/cuda*.c src/device/gemm_cuda.c src/comm/nccl.c))
SRC     = $(sort $(if $(CUDA),$(wildcard src/*/*.c),$(filter-out $(CUDA_SRC),$(wildcard src/*/*.c))))
KERNELS = $(sort $(wildcard kernels/cpu/*.c))
ISAS    = generic avx2 avx512
MAINS   = src/cli/train_main.c src/cli/ckpt_main.c
OBJ     = $(patsubst %.c,$(BUILD)/%.o,$(filter-out $(MAINS),$(SRC))) \
          $(foreach isa,$(ISAS),$(patsubst %.c,$(BUILD)/%.$(isa).o,$(KERNELS))) \
          $(if $(CUDA),$(patsubst %.cu,$(BUILD)/%.o,$(sort $(wildcard kernels/cuda/*.cu))))
LIB     = $(BUILD)/libdmuon.a
UNIT    = $(patsubst tests/unit/%.c,$(BUILD)/unit/%,$(sort $(wildcard tests/unit/test_*.c)))
DIST    = $(patsubst tests/dist/%.c,$(BUILD)/dist/%,$(sort $(wildcard tests/dist/*.c)))
CUDA_TESTS = $(patsubst tests/cuda/%.c,$(BUILD)/cuda/%,$(sort $(wildcard tests/cuda/*.c)))
FUZZ    = $(patsubst tests/fuzz/%.c,$(BUILD)/fuzz/%,$(sort $(wildcard tests/fuzz/fuzz_*.c)))
BENCH   = $(patsubst tests/bench/%.c,$(BUILD)/bench/%,$(sort $(wildcard tests/bench/*.c)))
PROGS   = $(BINDIR)/dmuon-train $(if $(wildcard src/cli/ckpt_main.c),$(BINDIR)/dmuon-ckpt)

.PHONY: all deps deps-lint deps-dist deps-bench deps-fuzz deps-slurm demo check check-full unit reproduce bench fuzz lint format install clean help
.DEFAULT_GOAL := all

## all: build bin/dmuon-train and bin/dmuon-ckpt
all: $(PROGS)

## deps: install the Debian packages that are missing (apt-get; sudo when not root)
deps:
	$(Q)scripts/install_deps.sh $(DEBS)
deps-lint:
	$(Q)scripts/install_deps.sh $(DEBS_LINT)
deps-dist:
	$(Q)scripts/install_deps.sh $(DEBS_DIST)
deps-bench:
	$(Q)scripts/install_deps.sh $(DEBS_BENCH)
deps-fuzz:
	$(Q)scripts/install_deps.sh $(DEBS_FUZZ)
# Only root can run Slurm's daemons; without them tests/dist/test_slurm.py is skipped and says why.
deps-slurm:
	$(Q)[ "$$(id -u)" -ne 0 ] || scripts/install_deps.sh $(DEBS_SLURM) || echo "no Slurm: tests/dist/test_slurm.py will be skipped"

FOREIGN = $(if $(filter src/comm/% tests/dist/% tests/cuda/%,$<),$(MPI_CFLAGS)) $(if $(filter $(CUDA_SRC) tests/cuda/%,$<),-isystem $(CUDA_HOME)/include)
$(BUILD)/%.o: %.c | deps
	@mkdir -p $(@D)
	$(if $(V),,@echo "CC $<")
	$(Q)$(CC) $(CFLAGS) $(FOREIGN) -MMD -MP -c $< -o $@

$(BUILD)/kernels/cuda/%.o: kernels/cuda/%.cu | deps cuda-release
	@mkdir -p $(@D)
	$(if $(V),,@echo "NVCC $<")
	$(Q)$(NVCC) $(NVCCFLAGS) -MMD -MP -MF $(@:.o=.d) -c $< -o $@

.PHONY: cuda-release
cuda-release:
	@[ -x $(NVCC) ] || { echo "CUDA=1 needs $(NVCC), which is not there: install the CUDA toolkit $(CUDA_RELEASE), or set CUDA_HOME" >&2; exit 1; }
	@$(NVCC) --version | grep -q 'release $(CUDA_RELEASE),' || \
	    { echo "CUDA=1 is built with toolkit $(CUDA_RELEASE) only, and $(NVCC) is another: set CUDA_HOME" >&2; exit 1; }
	@[ -f $(CUDA_HOME)/include/nccl.h ] || { echo "CUDA=1 needs NCCL, and $(CUDA_HOME)/include/nccl.h is not there" >&2; exit 1; }
$(if $(CUDA),$(patsubst %.c,$(BUILD)/%.o,$(CUDA_SRC))): | cuda-release

# Every kernel is compiled once per vector unit; the table that fits the processor is chosen at run time. The bits are the same.
ISA_generic =
ISA_avx2    = -mavx2 -mfma
ISA_avx512  = -mavx512f -mavx512dq -mavx512bw -mavx512vl -mavx2 -mfma -mprefer-vector-width=512
define kernel_rule
$(BUILD)/kernels/cpu/%.$(1).o: kernels/cpu/%.c | deps
	@mkdir -p $$(@D)
	$$(if $$(V),,@echo "CC $$< ($(1))")
	$$(Q)$$(CC) $$(CFLAGS) $$(ISA_$(1)) -DDM_ISA=$(1) -DDM_ISA_$(1)=1 -MMD -MP -c $$< -o $$@
endef
$(foreach isa,$(ISAS),$(eval $(call kernel_rule,$(isa))))

$(LIB): $(OBJ)
	$(if $(V),,@echo "AR $@")
	$(Q)rm -f $@ && ar rcs $@ $^

$(BINDIR)/dmuon-train: $(BUILD)/src/cli/train_main.o $(LIB)
$(BINDIR)/dmuon-ckpt: $(BUILD)/src/cli/ckpt_main.o $(LIB)
$(PROGS):
	@mkdir -p $(@D)
	$(if $(V),,@echo "LD $@")
	$(Q)$(CC) $(CFLAGS) $^ $(LIBS) -o $@

$(BUILD)/unit/%: $(BUILD)/tests/unit/%.o $(LIB)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $^ $(LIBS) -lcmocka -o $@
$(BUILD)/dist/%: $(BUILD)/tests/dist/%.o $(LIB)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $^ $(LIBS) -lcmocka -o $@
$(BUILD)/cuda/%: $(BUILD)/tests/cuda/%.o $(LIB)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $^ $(LIBS) -lcmocka -o $@
$(BUILD)/fuzz/%: $(BUILD)/tests/fuzz/%.o $(BUILD)/tests/fuzz/replay.o $(LIB)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $^ $(LIBS) -o $@
$(BUILD)/bench/%: $(BUILD)/tests/bench/%.o $(LIB)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $^ $(LIBS) -lopenblas -o $@

.PRECIOUS: $(BUILD)/%.o
-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
ifdef CUDA
include tests/cuda_standin/rules.mk
endif

# Most tests that start processes wait for them half of the time, so that several files run beside one another, the longest first;
# those that watch times have the machine for themselves.
ALONE  = $(patsubst %,tests/dist/test_%.py,failure overlap signal_phases signals tp_overlap)
FIRST  = $(patsubst %,tests/%.py,dist/test_bits dist/test_tp_bits cuda/test_cuda_bits cli/test_configuration dist/test_resume dist/test_mutants \
           cuda/test_faults dist/test_slurm cli/test_bad_input cuda/test_cuda_fast dist/test_fast)
PYTEST = $(FIRST) $(filter-out $(FIRST) $(ALONE),$(sort $(wildcard tests/*/test_*.py))) -- $(ALONE)
TEST_ENV = OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 DM_BUILD=$(BUILD) DM_BIN=$(BINDIR) DM_CUDA_BUILD=$(CUDA_BUILD) \
           ASAN_OPTIONS=fast_unwind_on_malloc=0:verify_asan_link_order=0 \
           LSAN_OPTIONS=suppressions=$(CURDIR)/tests/lsan.supp:print_suppressions=0 TSAN_OPTIONS=ignore_noninstrumented_modules=1

# The CUDA backend is tested on CPUs, on stand-ins (tests/cuda_standin), in a build of its own, where its toolkit is installed.
# Not with sanitizers: they do not know the stand-ins' fibers and closed memory.
CUDA_BUILD = $(if $(SAN),none,$(if $(CUDA),$(BUILD),build/$(if $(DEBUG),debug,release)-cuda))
.PHONY: cuda-tests gpu-programs
ifdef CUDA
## gpu-programs: with CUDA=1, what scripts/gpu_check.py runs or bundles for a machine with a GPU
gpu-programs: all $(CUDA_TESTS)
cuda-tests: all standin standin-selftest $(CUDA_TESTS)
else
cuda-tests:
	$(Q)if [ -n "$(SAN)" ]; then echo "sanitizers: the CUDA tests will be skipped"; \
	elif $(MAKE) --no-print-directory cuda-release; then $(MAKE) --no-print-directory CUDA=1 BUILD=$(CUDA_BUILD) BINDIR=$(CUDA_BUILD)/bin cuda-tests; \
	else echo "no CUDA toolkit: the CUDA tests will be skipped"; fi
endif

## demo: train llama-1m on the King James text with 8 ranks (replicate 2 x shard 2 x tp 2), 200 steps
demo: all
	$(Q)scripts/demo.sh $(BINDIR)

## check: the tests, within 25 minutes on two cores (SAN=address,undefined for sanitizers; the CUDA part where nvcc is)
check: all cuda-tests deps-lint deps-dist deps-slurm $(UNIT) $(DIST) $(FUZZ)
	$(Q)$(TEST_ENV) $(PYTHON) scripts/run_tests.py $(UNIT) -- $(PYTEST)

## check-full: also what is too long for every change
check-full: all cuda-tests deps-lint deps-dist deps-slurm $(UNIT) $(DIST) $(FUZZ)
	$(Q)$(TEST_ENV) DM_SLOW=1 $(PYTHON) scripts/run_tests.py $(UNIT) -- $(PYTEST)

unit: $(UNIT)
	$(Q)$(TEST_ENV) $(PYTHON) scripts/run_tests.py $(UNIT) --

## reproduce: run the table of meshes and modes and compare every bit; RUN=name starts one row
reproduce: all
	$(Q)$(TEST_ENV) $(PYTHON) scripts/reproduce.py $(RUN)

## bench: speed as ratios of the same run; the figures go to build/bench.json
bench: deps-bench all $(BENCH)
	$(Q)$(TEST_ENV) $(PYTHON) scripts/bench.py

## fuzz: run every libFuzzer target for FUZZ_S seconds (600) on its corpus; needs clang
FUZZ_S ?= 600
fuzz: deps deps-fuzz
	$(Q)scripts/fuzz.sh $(FUZZ_S)

## lint: layers, format, cppcheck
lint: deps-lint
	$(Q)$(PYTHON) scripts/check_layers.py
	$(Q)clang-format --dry-run -Werror $(shell find src kernels tests -name '*.[ch]' -o -name '*.cu' -o -name '*.cpp')
	$(Q)cppcheck --quiet --error-exitcode=1 --enable=warning,portability --inline-suppr --suppressions-list=scripts/cppcheck.supp -Isrc -I. $(if $(wildcard src),src kernels)

## format: rewrite sources in the project's format
format: deps-lint
	$(Q)clang-format -i $(shell find src kernels tests -name '*.[ch]' -o -name '*.cu' -o -name '*.cpp')

## install: copy programs, models and scripts below PREFIX (/usr/local)
install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/share/dmuon-train/models $(DESTDIR)$(PREFIX)/share/dmuon-train/scripts
	install $(PROGS) $(DESTDIR)$(PREFIX)/bin
	install -m 644 models/*.yaml $(DESTDIR)$(PREFIX)/share/dmuon-train/models
	install scripts/run.sh scripts/train.sbatch scripts/chain.sh scripts/compare_runs.py scripts/flight.py $(DESTDIR)$(PREFIX)/share/dmuon-train/scripts

## clean: remove build outputs
clean:
	rm -rf build bin

## help: this list
help:
	@grep -h '^## ' $(MAKEFILE_LIST) | sed 's/^## /  make /'
