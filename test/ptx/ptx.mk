# The PTX interpreter: what nvcc has made of the kernels, run on a machine with no GPU. Included by the top Makefile, whose
# rules and variables it uses.
#
#   make test-ptx          everything here, with the parts that need other projects' kernels; its report is in dev/results
#   make ptx-quick         what `make test` runs
#
# Nothing is compiled by nvcc for this: the program's own objects hold their PTX. The kernel tests, the fake CUDA libraries
# and the CPU ops are the emulator's objects.

PTX       := $(BUILD)/ptx
# Without contraction: what the PTX does not fuse stays apart. -frounding-math: .rz, .rm and .rp set the host's rounding.
PTX_CPU   := $(if $(shell grep -m1 -w avx2 /proc/cpuinfo 2>/dev/null),-mavx2 -mfma -mf16c)
PTX_FLAGS := -std=c++20 -O2 -g1 $(PTX_CPU) -Wall -Wextra -Wno-psabi -I. -isystem $(SIMT_CUDA_INC) -MMD -MP \
             -ffp-contract=off -frounding-math -fno-strict-aliasing -fno-math-errno
PTX_PARTS := parse flow machine memory bind ops_arithmetic ops_move ops_memory ops_warp ops_tensor ops_hopper \
             order counts coverage unpack cudart memory_hooks
PTX_WRAP  := -Wl,--wrap=cudaFuncSetAttribute

$(PTX)/%.o: test/ptx/%.cpp
	@mkdir -p $(@D)
	$(say)
	$(Q)$(CXX) $(PTX_FLAGS) -c -o $@ $<
$(PTX)/libptx.a: $(PTX_PARTS:%=$(PTX)/%.o)
	@rm -f $@; ar rcs $@ $^

PTX_KERNELS := $(CU_SOURCES:%.cu=$(OBJ)/%.cu.o)
PTX_LIBS    := $(PTX)/libptx.a $(SIMT)/plain/libops.a $(SIMT)/plain/libemu.a
PTX_LINK     = $(CXX) -fopenmp -o $@ $(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(PTX_WRAP)

$(PTX)/kernel_tests: $(PTX)/expect_kernels.o $(SIMT_TESTS:test/%.cpp=$(SIMT)/plain/t/%.o) $(PTX_KERNELS) $(PTX_LIBS)
	$(say)
	$(Q)$(PTX_LINK) $(SIMT_GTEST) $(SIMT_LIBS)

$(PTX)/self_tests: $(PTX)/selftest.o $(PTX)/libptx.a
	$(say)
	$(Q)$(CXX) -o $@ $^ $(SIMT_GTEST) -ldl -pthread

# Which devices run.sh pretends to be
$(PTX)/arches: FORCE
	@mkdir -p $(@D); echo '$(SM:%a=%)' | cmp -s - $@ || echo '$(SM:%a=%)' > $@

PTX_TARGETS := $(PTX)/self_tests $(PTX)/kernel_tests $(PTX)/arches

.PHONY: test-ptx ptx-quick
ptx-quick: $(PTX_TARGETS)
	test/ptx/run.sh $(PTX) quick
test-ptx: $(PTX_TARGETS)
	test/ptx/run.sh $(PTX) all

-include $(shell find $(PTX) -name '*.d' 2>/dev/null)
