# The lessons. make learn: every solution passes its check, every exercise as it stands fails it.
# make lesson N=3: the check of lesson 3 on its exercise.cpp, which is yours to edit. make speedrun: a loss to reach.

LEARN := $(OBJ)/learn
LESSONS := $(notdir $(patsubst %/,%,$(sort $(wildcard dev/learn/[0-9][0-9]_*/))))
LESSON := $(filter $(shell printf %02d $(or $(N:0%=%),0))_%,$(LESSONS))
LEARN_FLAGS := -std=c++20 -O1 -Wall -Wno-psabi -I. -MMD -MP $(LEARN_INCLUDE) $(FLAVOUR_DEFS)

$(LEARN)/%.o: dev/learn/%.cpp
	@mkdir -p $(@D)
	$(say)
	@$(CXX) $(LEARN_FLAGS) -c -o $@ $<
$(LEARN)/%/solution: $(LEARN)/%/check.o $(LEARN)/%/solution.o $(LIB)
	$(say)
	@$(CXX) $(OPENMP) -o $@ $^ $(FLAVOUR_LIBS)
$(LEARN)/%/exercise: $(LEARN)/%/check.o $(LEARN)/%/exercise.o $(LIB)
	$(say)
	@$(CXX) $(OPENMP) -o $@ $^ $(FLAVOUR_LIBS)
LEARN_CFLAGS ?= -std=c11 -O3 -march=native -fopenmp
$(LEARN)/train_llama: dev/learn/train_llama.c
	@mkdir -p $(@D)
	$(say)
	$(Q)$(or $(CC),cc) $(LEARN_CFLAGS) -Wall -Wextra -o $@ $< -lm

.PHONY: learn learn-build lesson
learn: learn-build
	@dev/learn/run.sh $(LEARN)
learn-build: train_llama $(LEARN)/train_llama $(foreach l,$(LESSONS),$(LEARN)/$l/solution $(LEARN)/$l/exercise)
lesson: $(if $(LESSON),$(LEARN)/$(LESSON)/exercise)
	@$(if $(LESSON),$<,echo "make lesson N=1 to N=$(words $(LESSONS)): one of dev/learn/README.md" && exit 2)

# dev/learn/speedrun/README.md
.PHONY: speedrun
speedrun: train_llama
	@dev/learn/speedrun/speedrun.py --seeds $(or $(SEEDS),5) $(if $(RECORD),--record)

-include $(wildcard $(LEARN)/*/*.d)
