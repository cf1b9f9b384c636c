#pragma once
// Texts that hosts send each other about snapshots (neighbours.h). Any text of another host is refused by an Error, or
// it names files of the snapshot's folder, of lengths that can be.

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "llama/checkpoint/checkpoint.h"
#include "llama/checkpoint/checkpoint_store.h"

namespace rz {

// A rank's share: which bytes of which files, as JSON.
std::string to_text(const CopyLayout&);
CopyLayout layout_from(const std::string& text, const std::string& where);

// A snapshot, and on which hosts (their makers) which rank's slices are.
struct FoundSnapshot {
    std::map<int, std::vector<int>> hosts_of;
    std::vector<int> hosts;
};
using Snapshot = std::pair<int64_t, std::string>;  // step and id: those of one step may be of two attempts

// The snapshots of this host, and those of all. `makers`: SnapshotHosts'.
std::string snapshots_here(const CheckpointStore&);
std::map<Snapshot, FoundSnapshot> snapshots_in(const std::vector<std::string>& texts, const std::vector<int>& makers);

// Needed on a host before slices of a snapshot come: its small files, and sizes and headers of the others.
std::string skeleton_of(const std::string& folder);
void make_skeleton(const std::string& text, const std::string& folder);

}  // namespace rz
