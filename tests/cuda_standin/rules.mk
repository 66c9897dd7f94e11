# The CUDA stand-ins, for `make CUDA=1`: shared libraries under the names of the real ones, found by LD_LIBRARY_PATH, and
# the kernels compiled once more, by g++. Everything lies in $(BUILD)/standin.

STANDIN     = $(BUILD)/standin
STANDIN_DIR = tests/cuda_standin
STANDIN_CXX = g++ -std=c++17 -O2 -g -fPIC -Wall -Wextra -I. -isystem $(CUDA_HOME)/include -MMD -MP
# alignment, bounds: what a GPU reports as a misaligned address, and shared arrays overrun; the trap becomes a fault.
STANDIN_EMU = $(STANDIN_CXX) -march=native -ffp-contract=off -fno-math-errno -fno-gnu-unique -Wno-unknown-pragmas \
              -fsanitize=alignment,bounds -fsanitize-undefined-trap-on-error -include $(STANDIN_DIR)/emu.h
STANDIN_CUDART  = $(patsubst %,$(STANDIN)/%.o,core call mem stream graph schedule fiber kernel device cudart)
STANDIN_NCCL    = $(patsubst %,$(STANDIN)/%.o,nccl communicator transfer channel)
STANDIN_CUBLASLT = $(patsubst %,$(STANDIN)/%.o,cublaslt cublaslt_product)
STANDIN_KERNELS = $(patsubst kernels/cuda/%.cu,$(STANDIN)/kernels/%.o,$(sort $(wildcard kernels/cuda/*.cu)))
STANDIN_LIBS    = $(STANDIN)/libcudart.so.13 $(STANDIN)/libnccl.so.2 $(STANDIN)/libcublasLt.so.13 \
                  $(STANDIN)/libkernels_emu.so

# The self-tests' programs are built as the engine is: host code by $(CC), kernels by $(NVCC), the toolkit's libraries.
STANDIN_TEST = $(STANDIN)/selftest
STANDIN_TEST_PROGS = $(patsubst $(STANDIN_DIR)/selftest/%.c,$(STANDIN_TEST)/%,$(sort $(wildcard $(STANDIN_DIR)/selftest/*.c)))

.PHONY: standin standin-selftest
## standin: with CUDA=1, build the stand-ins that run the CUDA binary without a GPU
standin: $(STANDIN_LIBS)
standin-selftest: standin $(STANDIN_TEST_PROGS) $(STANDIN_TEST)/libkernels_emu.so

$(STANDIN)/%.o: $(STANDIN_DIR)/%.cpp | deps
	@mkdir -p $(@D)
	$(if $(V),,@echo "CXX $<")
	$(Q)$(STANDIN_CXX) -c $< -o $@

$(STANDIN)/libcudart.so.13: $(STANDIN_CUDART) $(STANDIN_DIR)/cudart.map
	$(if $(V),,@echo "LD $@")
	$(Q)g++ -shared $(STANDIN_CUDART) -o $@ -Wl,-soname,$(@F) -Wl,--version-script=$(STANDIN_DIR)/cudart.map,-Bsymbolic -ldl -lpthread

$(STANDIN)/libnccl.so.2: $(STANDIN_NCCL) $(STANDIN)/libcudart.so.13
	$(if $(V),,@echo "LD $@")
	$(Q)g++ -shared $^ -o $@ -Wl,-soname,$(@F)

$(STANDIN)/libcublasLt.so.13: $(STANDIN_CUBLASLT) $(STANDIN)/libcudart.so.13 $(STANDIN_DIR)/cublaslt.map
	$(if $(V),,@echo "LD $@")
	$(Q)g++ -shared $(STANDIN_CUBLASLT) $(STANDIN)/libcudart.so.13 -o $@ -Wl,-soname,$(@F) -Wl,--version-script=$(STANDIN_DIR)/cublaslt.map

$(STANDIN)/kernels/%.o: kernels/cuda/%.cu | deps
	@mkdir -p $(@D)
	$(if $(V),,@echo "CXX $< (emulation)")
	$(Q)$(STANDIN_EMU) -x c++ -c $< -o $@

$(STANDIN)/libkernels_emu.so: $(STANDIN_KERNELS) $(STANDIN)/emu_end.o $(STANDIN)/libcudart.so.13
	$(if $(V),,@echo "LD $@")
	$(Q)g++ -shared $^ -o $@ -Wl,-Bsymbolic

$(STANDIN_TEST)/%.o: $(STANDIN_DIR)/selftest/%.c | deps
	@mkdir -p $(@D)
	$(if $(V),,@echo "CC $<")
	$(Q)$(CC) $(CFLAGS) $(MPI_CFLAGS) -isystem $(CUDA_HOME)/include -MMD -MP -c $< -o $@

$(STANDIN_TEST)/kernels.cu.o: $(STANDIN_DIR)/selftest/kernels.cu $(STANDIN_DIR)/selftest/kernels.h kernels/cuda/launch.h | deps cuda-release
	@mkdir -p $(@D)
	$(if $(V),,@echo "NVCC $<")
	$(Q)$(NVCC) $(NVCCFLAGS) -c $< -o $@

$(STANDIN_TEST)/libkernels_emu.so: $(STANDIN_DIR)/selftest/kernels.cu $(STANDIN)/emu_end.o $(STANDIN)/libcudart.so.13
	@mkdir -p $(@D)
	$(if $(V),,@echo "CXX $< (emulation)")
	$(Q)$(STANDIN_EMU) -shared -x c++ $< -x none $(STANDIN)/emu_end.o $(STANDIN)/libcudart.so.13 -o $@ -Wl,-Bsymbolic

$(STANDIN_TEST_PROGS): %: %.o $(STANDIN_TEST)/kernels.cu.o
	$(if $(V),,@echo "LD $@")
	$(Q)$(CC) $(CFLAGS) $^ -o $@ $(LIBS)
