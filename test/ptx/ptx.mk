# The PTX interpreter: what nvcc has made of the kernels, run on a machine with no GPU. Included by the top Makefile, whose
# rules and variables it uses.
#
#   make test-ptx          everything here, with the parts that need other projects' kernels; its report is build/ptx/report.md
#   make ptx-quick         what `make test` runs
#
# Nothing is compiled by nvcc for this: the program's own objects hold their PTX. The kernel tests, the fake CUDA libraries
# and the CPU ops are the emulator's objects.

PTX       := $(BUILD)/ptx
# Without contraction: what the PTX does not fuse stays apart. -frounding-math: .rz, .rm and .rp set the host's rounding.
PTX_CPU   := $(if $(shell grep -m1 -w avx2 /proc/cpuinfo 2>/dev/null),-mavx2 -mfma -mf16c)
# MODELS_FLIP: a property of the models can be turned wrong, to see which test notices (flips.h).
PTX_FLAGS := -std=c++20 -O2 -g1 -DMODELS_FLIP $(PTX_CPU) -Wall -Wextra -Wno-psabi -I. -isystem $(SIMT_CUDA_INC) -MMD -MP \
             -ffp-contract=off -frounding-math -fno-strict-aliasing -fno-math-errno
PTX_PARTS := parse flow machine memory bind ops_arithmetic ops_move ops_memory ops_warp ops_tensor ops_hopper \
             order counts coverage flips unpack cudart memory_hooks
PTX_WRAP  := -Wl,--wrap=cudaFuncSetAttribute
PTX_BITS  := -Wl,--wrap=cudaMemcpyAsync

$(PTX)/%.o: test/ptx/%.cpp
	@mkdir -p $(@D)
	$(say)
	$(Q)$(CXX) $(PTX_FLAGS) -c -o $@ $<
$(PTX)/libptx.a: $(PTX_PARTS:%=$(PTX)/%.o)
	@rm -f $@; ar rcs $@ $^

PTX_KERNELS := $(CU_SOURCES:%.cu=$(OBJ)/%.cu.o)
PTX_LIBS    := $(PTX)/libptx.a $(SIMT)/plain/libops.a $(SIMT)/plain/libemu.a
PTX_LINK     = $(CXX) -fopenmp -o $@ $(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(PTX_WRAP)

$(PTX)/kernel_tests: $(PTX)/expect_kernels.o $(PTX)/bits.o $(SIMT_TESTS:test/%.cpp=$(SIMT)/plain/t/%.o) $(PTX_KERNELS) $(PTX_LIBS)
	$(say)
	$(Q)$(PTX_LINK) $(PTX_BITS) $(SIMT_GTEST) $(SIMT_LIBS)

# The same tests in the emulator, with what writes their bits
$(PTX)/source_tests: $(PTX)/bits.o $(SIMT_TESTS:test/%.cpp=$(SIMT)/plain/t/%.o) $(SIMT_ALL.plain)
	$(say)
	$(Q)$(SIMT_LINK.plain) $(PTX_BITS) $(SIMT_GTEST) $(SIMT_LIBS)

$(PTX)/self_tests: $(PTX)/selftest.o $(PTX)/libptx.a
	$(say)
	$(Q)$(CXX) -o $@ $^ $(SIMT_GTEST) -ldl -pthread

# The same tests on objects for sm_75 alone: nvcc takes every kernel for it, and run.sh runs some (make test-full).
PTX75_KERNELS := $(CU_SOURCES:%.cu=$(PTX)/sm75/%.cu.o)
PTX75_FLAGS    = $(subst $(GENCODE),-gencode arch=compute_75$(comma)code=[sm_75$(comma)compute_75],$(NVCCFLAGS))
$(PTX)/sm75/%.cu.o: %.cu Makefile
	@mkdir -p $(@D)
	$(say)
	$(Q)$(NVCC) $(PTX75_FLAGS) -MMD -MP -MF $(@:.o=.d) -c -o $@ $<
$(PTX)/sm75/comm/%.cu.o: private NVCCFLAGS += $(NCCL_DEVICE_FLAGS)
$(PTX)/sm75/kernel_tests: $(PTX)/expect_kernels.o $(PTX)/bits.o $(SIMT_TESTS:test/%.cpp=$(SIMT)/plain/t/%.o) $(PTX75_KERNELS) $(PTX_LIBS)
	$(say)
	$(Q)$(PTX_LINK) $(PTX_BITS) $(SIMT_GTEST) $(SIMT_LIBS)

# Which devices run.sh pretends to be: those whose PTX there is
PTX_ARCHES := $(patsubst %a,%,$(filter 80 90a,$(ARCHES)))
$(PTX)/arches: FORCE
	@mkdir -p $(@D); echo '$(PTX_ARCHES)' | cmp -s - $@ || echo '$(PTX_ARCHES)' > $@

PTX_TARGETS := $(PTX)/self_tests $(PTX)/kernel_tests $(PTX)/arches

# Kernels of others, run by the interpreter; proven.sh fetches their sources and says in PROVEN what there is of them.
# Only their PTX is made, so each of these is one run of nvcc's front end: a minute, and 5 GB for Hopper's.
CUTLASS      := $(BUILD)/cutlass/cutlass_library/source
FLASH2       := $(BUILD)/flash-attn/flash_attn-2.8.3/csrc/flash_attn/src
PROVEN_FLAGS := -std=c++17 -O2 -ccbin $(CCBIN) --expt-relaxed-constexpr --expt-extended-lambda -DNDEBUG -w -I. \
                -I$(CUTLASS)/include -I$(CUTLASS)/tools/util/include
PROVEN_NAMES := $(if $(filter cutlass,$(PROVEN)),cutlass_sm80 $(foreach n,1 2 3 4,cutlass_sm90_$n) fmha_sm90) \
                $(if $(filter flash2,$(PROVEN)),flash2)
PTX_ONLY      = -gencode arch=compute_$(1),code=compute_$(1)
$(PTX)/proven/cutlass_sm80.o: PROVEN_FLAGS += $(call PTX_ONLY,80)
$(PTX)/proven/cutlass_sm90_%.o: PROVEN_FLAGS += $(call PTX_ONLY,90a)
$(PTX)/proven/fmha_sm90.o: PROVEN_FLAGS += $(call PTX_ONLY,90a) -I$(CUTLASS)/examples/88_hopper_fmha
$(PTX)/proven/flash2.o: PROVEN_FLAGS += $(call PTX_ONLY,80) --use_fast_math -Itest/ptx/proven/stub -I$(FLASH2) \
    $(foreach x,DROPOUT ALIBI SOFTCAP LOCAL,-DFLASHATTENTION_DISABLE_$x)

define proven_object
$(PTX)/proven/$(1).o: test/ptx/proven/$(2).cu test/ptx/proven/proven.h
	@mkdir -p $$(@D)
	$$(say)
	$$(Q)$$(NVCC) $$(PROVEN_FLAGS) -DPART=$(3) -c -o $$@ $$<
endef
$(eval $(call proven_object,cutlass_sm80,cutlass_sm80,1))
$(foreach n,1 2 3 4,$(eval $(call proven_object,cutlass_sm90_$n,cutlass_sm90,$n)))
$(eval $(call proven_object,fmha_sm90,fmha_sm90,1))
$(eval $(call proven_object,flash2,flash2,1))

$(PTX)/proven/proven_tests: $(PTX)/proven/test_proven.o $(PROVEN_NAMES:%=$(PTX)/proven/%.o) $(PTX)/libptx.a $(SIMT)/plain/libemu.a
	$(say)
	$(Q)$(PTX_LINK) -lgtest -ldl -lrt -pthread

.PHONY: test-ptx ptx-quick
ptx-quick: $(PTX_TARGETS)
	test/ptx/run.sh $(PTX) quick
test-ptx: $(PTX_TARGETS) $(PTX)/source_tests
	test/ptx/run.sh $(PTX) all

-include $(shell find $(PTX) -name '*.d' 2>/dev/null)
