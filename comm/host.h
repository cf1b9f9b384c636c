#pragma once

#include <string>

namespace rz {

std::string host_name();

// True: a launcher started several ranks; known before MPI is. False if the launcher's way to say so is unknown.
bool launched_with_others();

// True for the first process of this job on this host that asks with this text, until that process ends: what all ranks
// find wrong is then said once. Processes of a job are the children of one launcher.
bool first_to_say(const std::string& text);

// Linux charges a thread that yields a whole slice (3 ms), so beside busy threads a waiting one looks at its messages
// no oftener than that. From 6.12 on a thread may ask for shorter slices; its share of the core stays what it is.
// Elsewhere this does nothing. Once for each thread; cheap afterwards.
void ask_for_short_slices();

// To standard error, before MPI is there: once for all ranks of this host that say the same.
void say_once(const std::string& text);

}  // namespace rz
