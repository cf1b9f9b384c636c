# The lessons. make learn: every solution passes its check, every exercise as it stands fails it.
# make lesson N=3: the check of lesson 3 on mine.cpp, its exercise, which is yours to edit and which git does not see.
# lesson.cpp is both: with HOLE defined the exercise, without it the solution. make speedrun: a loss to reach.

LEARN := $(OBJ)/learn
LESSONS := $(notdir $(patsubst %/,%,$(sort $(wildcard dev/learn/[0-9][0-9]_*/))))
LESSON := $(filter $(shell printf %02d $(or $(N:0%=%),0))_%,$(LESSONS))
MINE := $(if $(LESSON),dev/learn/$(LESSON)/mine.$(if $(filter 18_%,$(LESSON)),cu,cpp))
LEARN_FLAGS := -std=c++20 -O1 -Wall -Wno-psabi -I. -MMD -MP $(LEARN_INCLUDE) $(FLAVOUR_DEFS)

$(LEARN)/%.o: dev/learn/%.cpp
	@mkdir -p $(@D)
	$(say)
	@$(CXX) $(LEARN_FLAGS) -c -o $@ $<
$(LEARN)/%/solution.o: dev/learn/%/lesson.cpp
	@mkdir -p $(@D)
	$(say)
	@$(CXX) $(LEARN_FLAGS) -MF $(@:.o=.lesson.d) -c -o $@ $<
$(LEARN)/%/exercise.o: dev/learn/%/lesson.cpp
	@mkdir -p $(@D)
	$(say)
	@$(CXX) $(LEARN_FLAGS) -DHOLE -MF $(@:.o=.lesson.d) -c -o $@ $<
$(LEARN)/%/solution: $(LEARN)/%/check.o $(LEARN)/%/solution.o $(LIB)
	$(say)
	@$(CXX) $(OPENMP) -o $@ $^ $(FLAVOUR_LIBS)
$(LEARN)/%/exercise: $(LEARN)/%/check.o $(LEARN)/%/exercise.o $(LIB)
	$(say)
	@$(CXX) $(OPENMP) -o $@ $^ $(FLAVOUR_LIBS)
$(LEARN)/%/mine: $(LEARN)/%/check.o $(LEARN)/%/mine.o $(LIB)
	$(say)
	@$(CXX) $(OPENMP) -o $@ $^ $(FLAVOUR_LIBS)
$(MINE):
	@awk '/^#ifdef HOLE$$/ { next } /^#else$$/ { hide = 1; next } /^#endif$$/ { hide = 0; next } !hide' $(@D)/lesson$(suffix $@) > $@

# Lesson 18 is a CUDA kernel, which the host's compiler makes for the emulator (test/simt): CUDA's headers are all that it
# needs, the toolkit's, or 3 MB from PyPI.
LEARN_KERNEL := $(LEARN)/18_cuda_kernel
LEARN_PYPI := $(BUILD)/cuda-12.8/include
LEARN_CUDA := $(firstword $(dir $(wildcard $(foreach d,$(or $(CUDA_HOME),/usr/local/cuda)/include $(LEARN_PYPI),$d/cuda_fp8.h))) $(LEARN_PYPI)/)
LEARN_EMU_FLAGS := $(LEARN_FLAGS) -Wno-unknown-pragmas -isystem $(LEARN_CUDA) -fno-strict-aliasing -fno-omit-frame-pointer -DRZ_CUDA \
                   -DSIMT_EMU -DSIMT_SOURCE_ROOT='"$(CURDIR)"'
LEARN_EMU := $(if $(HAVE_CUDA),$(SIMT)/plain/libemu.a,$(LEARN)/libemu.a)
$(LEARN_PYPI)/cuda_fp8.h:
	@dev/build/cuda_headers.py 12.8 $(LEARN_PYPI:/include=)
$(LEARN)/emu/%.o: test/simt/%.cpp | $(LEARN_CUDA)cuda_fp8.h
	@mkdir -p $(@D)
	$(say)
	@$(CXX) $(LEARN_EMU_FLAGS) -O2 -c -o $@ $<
$(LEARN)/libemu.a: $(patsubst %,$(LEARN)/emu/%.o,stack scheduler barrier warp shared copy tensor_core hopper coverage fake_cudart fake_loading fake_device) \
                   $(OBJ)/kernels/runtime/call_stack.o
	@rm -f $@; ar rcs $@ $^
$(LEARN_KERNEL)/mine.o: dev/learn/18_cuda_kernel/mine.cu
$(LEARN_KERNEL)/solution.o $(LEARN_KERNEL)/exercise.o: dev/learn/18_cuda_kernel/lesson.cu
$(LEARN_KERNEL)/mine.o $(LEARN_KERNEL)/solution.o $(LEARN_KERNEL)/exercise.o: $(LEARN_KERNEL)/%.o: | $(LEARN_CUDA)cuda_fp8.h
	@mkdir -p $(@D)
	$(say)
	@$(CXX) -x c++ $(LEARN_EMU_FLAGS) $(if $(filter exercise,$*),-DHOLE) -MF $(@:.o=.lesson.d) -c -o $@ $<
$(LEARN_KERNEL)/check.o: dev/learn/18_cuda_kernel/check.cpp | $(LEARN_CUDA)cuda_fp8.h
	@mkdir -p $(@D)
	$(say)
	@$(CXX) $(LEARN_EMU_FLAGS) -c -o $@ $<
$(addprefix $(LEARN_KERNEL)/,solution exercise mine): $(LEARN_KERNEL)/%: $(LEARN_KERNEL)/check.o $(LEARN_KERNEL)/%.o \
    $(OBJ)/kernels/runtime/check.o $(OBJ)/kernels/runtime/load.o $(LEARN_EMU)
	$(say)
	@$(CXX) -o $@ $^ -ldl -lrt -pthread

LEARN_CFLAGS ?= -std=c11 -O3 -march=native -fopenmp
$(LEARN)/train_llama: dev/learn/train_llama.c
	@mkdir -p $(@D)
	$(say)
	$(Q)$(or $(CC),cc) $(LEARN_CFLAGS) -Wall -Wextra -o $@ $< -lm

# make learn fetches no headers: without them it leaves lesson 18 out. make lesson N=18 does.
LEARN_BUILT := $(filter-out $(if $(wildcard $(LEARN_CUDA)cuda_fp8.h),,18_%),$(LESSONS))
.PHONY: learn learn-run learn-build lesson lesson-check
# Without the CUDA half, whose kernels take minutes to compile: no check needs them.
learn:
	@$(MAKE) --no-print-directory -j$(or $(J),$(shell nproc)) CUDA=0 learn-run
learn-run: $(OBJ)/train_llama learn-build
	@PROGRAM=$< dev/learn/test_lessons.py $(LEARN)
learn-build: $(LEARN)/train_llama $(foreach l,$(LEARN_BUILT),$(LEARN)/$l/solution $(LEARN)/$l/exercise)
lesson:
	@$(if $(LESSON),$(MAKE) --no-print-directory CUDA=0 lesson-check,echo "make lesson N=1 to N=$(words $(LESSONS)): one of dev/learn/README.md" && exit 2)
lesson-check: $(if $(LESSON),$(LEARN)/$(LESSON)/mine)
	@echo "yours to edit: $(MINE)"
	@$<

# dev/learn/speedrun/README.md
.PHONY: speedrun speedrun-run
speedrun:
	@$(MAKE) --no-print-directory -j$(or $(J),$(shell nproc)) CUDA=0 speedrun-run
speedrun-run: $(OBJ)/train_llama
	@dev/learn/speedrun/speedrun.py --program $< --seeds $(or $(SEEDS),5) $(if $(RECORD),--record)

# Compares what pages say between marks with what the program prints (dev/build/pages.py).
.PHONY: pages
pages: train_llama
	@dev/build/pages.py

# Not solution.d and exercise.d: builds from before there was lesson.cpp have them.
-include $(filter-out %/solution.d %/exercise.d,$(wildcard $(LEARN)/*/*.d))
