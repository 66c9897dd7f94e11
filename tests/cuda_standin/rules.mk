# The CUDA stand-ins, for `make CUDA=1`: shared libraries under the names of the real ones, found by LD_LIBRARY_PATH, and
# the kernels compiled once more, by g++. Everything lies in $(BUILD)/standin.

CUDA_HOME ?= /usr/local/cuda
STANDIN     = $(BUILD)/standin
STANDIN_DIR = tests/cuda_standin
STANDIN_CXX = g++ -std=c++17 -O2 -g -fPIC -Wall -Wextra -I. -isystem $(CUDA_HOME)/include -MMD -MP
# alignment, bounds: what a GPU reports as a misaligned address, and shared arrays overrun; the trap becomes a fault.
STANDIN_EMU = $(STANDIN_CXX) -march=native -ffp-contract=off -fno-math-errno -fno-gnu-unique -Wno-unknown-pragmas \
              -fsanitize=alignment,bounds -fsanitize-undefined-trap-on-error -include $(STANDIN_DIR)/emu.h
STANDIN_CUDART = $(patsubst %,$(STANDIN)/%.o,core mem stream fiber kernel cudart)
STANDIN_KERNELS = $(patsubst kernels/cuda/%.cu,$(STANDIN)/kernels/%.o,$(sort $(wildcard kernels/cuda/*.cu)))
STANDIN_LIBS = $(STANDIN)/libcudart.so.13 $(STANDIN)/libkernels_emu.so

.PHONY: standin
## standin: with CUDA=1, build the stand-ins that run the CUDA binary without a GPU
standin: $(STANDIN_LIBS)

$(STANDIN)/%.o: $(STANDIN_DIR)/%.cpp | deps
	@mkdir -p $(@D)
	$(if $(V),,@echo "CXX $<")
	$(Q)$(STANDIN_CXX) -c $< -o $@

$(STANDIN)/libcudart.so.13: $(STANDIN_CUDART) $(STANDIN_DIR)/cudart.map
	$(if $(V),,@echo "LD $@")
	$(Q)g++ -shared $(STANDIN_CUDART) -o $@ -Wl,-soname,$(@F) -Wl,--version-script=$(STANDIN_DIR)/cudart.map -ldl -lpthread

$(STANDIN)/kernels/%.o: kernels/cuda/%.cu | deps
	@mkdir -p $(@D)
	$(if $(V),,@echo "CXX $< (emulation)")
	$(Q)$(STANDIN_EMU) -x c++ -c $< -o $@

$(STANDIN)/libkernels_emu.so: $(STANDIN_KERNELS) $(STANDIN)/emu_end.o $(STANDIN)/libcudart.so.13
	$(if $(V),,@echo "LD $@")
	$(Q)g++ -shared $^ -o $@ -Wl,-Bsymbolic
