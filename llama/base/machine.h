#pragma once
// Machines: what a card has, what its kernels and links reach, and how many stand in a node. One TOML file for each, in
// llama/configs/machines, which is a part of the program; users add their own. MFU and the planner read the same table.

#include <optional>
#include <string>
#include <vector>

#include "comm/nccl_memory.h"
#include "kernels/runtime/device.h"

namespace rz {

struct Machine {
    std::string file, name;  // name: of the file, without .toml
    std::string about;
    std::string match;  // part of the name that the driver gives the card; empty: none
    bool cpu = false;   // ranks are processes on the cores of a host; else one GPU each
    double compute_capability = 9.0;
    double multiprocessors = 0;  // of a card; 0: unknown

    // Memory of a card, or of a host that its ranks share. Beside what the ledger counts a rank takes between
    // outside_min and outside_max: context, kernels, the libraries' own; NCCL takes more (comm/nccl_memory.h).
    double memory_gib = 0;
    double outside_min_mib = 0, outside_max_mib = 0;
    double nccl_version = 2.28, nccl_buffer_mib = 4;  // NCCL_BUFFSIZE
    int64_t link_channels = 32, card_channels = 16;   // of a communicator on one node, on several
    bool nvlink = true;                               // between ranks of a node; else PCIe

    // TFLOP/s. peak: the vendor's dense peak, which MFU is measured against. gemm: what large products reach.
    double peak_bf16 = 0, peak_fp32 = 0, peak_fp8 = 0;
    double gemm_bf16 = 0, gemm_fp32 = 0, gemm_fp8 = 0;
    // Rates of causal attention in bf16, counted without the masked half, at T = 1024, 2048, 4096, 8192, heads of 128
    // and of 64. Forward; backward, which is counted as 2.5 times the forward pass.
    std::vector<double> attention_forward_128, attention_backward_128, attention_forward_64, attention_backward_64;
    double attention_fp32_share = 1;  // of those rates in fp32
    double memory_gbs = 0;            // bytes read and written by a copy, GB/s
    // Between a card and its host, one direction, GB/s; and the host's memory, GB/s for each card (offload).
    double host_gbs = 25, host_memory_gbs = 20;
    double host_memory_gib = 0;  // of a node, which its ranks pin together; 0: unknown
    double op_us = 0;            // the least time of an op

    int64_t ranks_per_node = 8;
    // Between ranks of a node, one direction, GB/s for each rank; from node to node, GB/s of each card.
    double link_gbs = 0, link_us = 0;
    int64_t cards = 1;
    double card_gbs = 0, card_us = 0;
    // Rate of one of NCCL's channels for a message, GB/s; 0: whatever the link does.
    double link_channel_gbs = 0, card_channel_gbs = 0;
    // Costs of the virtual network (comm/virtual_net.h): how long a message holds a port beyond its bytes; what lies
    // before a group of messages and before a sum.
    double link_message_us = 0, card_message_us = 0, group_gap_us = 0, sum_gap_us = 0;

    NcclModel nccl() const;
    int64_t memory_bytes(int64_t ranks_on_node) const;  // of a rank
    int64_t host_memory_bytes() const { return int64_t(host_memory_gib * double(int64_t(1) << 30)); }
    // FLOP/s that MFU is measured against, whatever a run's types: dense bf16, as is published; 0: unknown.
    double peak_flops() const { return 1e12 * peak_bf16; }
};

// A TOML file by its path, or a machine by its name in any case: of a file in the folder $RINGZERO_MACHINES, or of one
// that is a part of the program. Throws with the nearest name if there is none, and naming file and key if a value is
// wrong.
Machine load_machine(const std::string& name_or_file);
std::vector<std::string> machine_names();
// The machine whose `match` is the longest part of the device's name; none on a CPU, or if the card is unknown.
std::optional<Machine> find_machine(const Device&);

}  // namespace rz
