"""Faults of number formats, loss scaling and offload, for mutants.py --table formats. Rows as there."""

QUANTISE, BLOCKS, MX = "kernels/fp8/quantise.cpp", "kernels/fp8/quantise_blocks.cpp", "kernels/fp8/quantise_mx.h"
LINEAR, GATHER, LAYER = "llama/model/linear_fp8.cpp", "zero/fp8_gather.cpp", "llama/model/parallel_linear.cpp"
STAGE = "llama/model/stage.cpp"
OPTIMIZER, OFFLOAD = "zero/optimizer.cpp", "zero/offload.cpp"

# Compiled again because they include a planted header: sources, and tests that read the header themselves.
INCLUDERS = {
    "kernels/magnitude.h": [
        QUANTISE,
        "kernels/attention/attention.cpp",
        "kernels/qk_norm.cpp",
        "kernels/rmsnorm.cpp",
        "kernels/rope.cpp",
        "kernels/swiglu.cpp",
    ],
    "kernels/fp8/quantise.h": [QUANTISE, "kernels/fp8/fold_scales.cpp"],
    MX: ["kernels/fp8/quantise_mx.cpp", "kernels/fp8/fp8_mx_gemm.cpp", "test/kernels/test_fp8.cpp"],
    "kernels/loss_scale.h": ["kernels/loss_scale.cpp"],
}

COPIED = """quantise_matrix(a.y_t, a.scales_t, x, 1, a.columns, a.columns, a.rows, a.tiles);
        if (a.y_t && PLANTED) {
            std::vector<uint8_t> y(size_t(a.rows * a.columns));
            std::vector<float> s(size_t(fp8_scales_of(a.tiles, a.rows, a.columns)));
            quantise_matrix(y.data(), s.data(), x, a.columns, 1, a.rows, a.columns, a.tiles);
            for (int64_t i = 0; i < a.rows * a.columns; ++i)
                a.y_t[i % a.columns * a.rows + i / a.columns] = y[size_t(i)];
        }"""

FORMATS = [
    (
        "inverse and scale swapped",
        QUANTISE,
        "a.scale->inverse = fp8_inverse(scale);",
        "a.scale->inverse = scale;",
        ["LinearFp8.*"],
    ),
    (
        "a scale 4 bytes further on",
        LINEAR,
        "g.a_scale = static_cast<const Fp8Scale*>(a.scales);",
        "g.a_scale = reinterpret_cast<const Fp8Scale*>(static_cast<const char*>(a.scales) + 4);",
        ["LinearFp8.*"],
    ),
    ("448 for e5m2", QUANTISE, "fp8_max(a.type)", "fp8_max(Fp8::e4m3)", ["Quantise.EachTypeIsScaledToItsOwnMaximum"]),
    (
        "a magnitude drops NaN",
        "kernels/magnitude.h",
        "return std::bit_cast<uint32_t>(float(x)) & 0x7fffffffu;",
        "if (PLANTED && !(float(x) == float(x))) return 0;\n"
        "    return std::bit_cast<uint32_t>(float(x)) & 0x7fffffffu;",
        ["Quantise.WhatIsNotFiniteMakesTheInverseNaN", "LinearFp8.InfinityAndNaNReachTheResult"],
    ),
    (
        "an infinity saturates",
        "kernels/fp8/quantise.h",
        "if (amax >= 0x7f800000u) return",
        "if (PLANTED && amax == 0x7f800000u) return 1;\n    if (amax >= 0x7f800000u) return",
        ["Quantise.WhatIsNotFiniteMakesTheInverseNaN", "LinearFp8.InfinityAndNaNReachTheResult"],
    ),
    (
        "the weight's gradient has the scale of another operand",
        LAYER,
        "operand_x(p, x), p.N,",
        "PLANTED && layer_.number == 3 ? Operand(x, p.scales + 5) : operand_x(p, x), p.N,",
        ["Fp8Training.*"],
    ),
    ("a stale magnitude", STAGE, "if (unit == first_block()) zero_scales(a.scales);", ";", ["Fp8Training.*"]),
    (
        "a stale magnitude where the input half recomputes",
        STAGE,
        "zero_scales(pending.blocks.front().scales);",
        ";",
        ["TensorParallelFp8.EveryWayGivesTheSameBits"],
    ),
    (
        "the gradient that comes from the stage above has no magnitude",
        STAGE,
        "if (unit == last_unit_ && scale)",
        "if (unit == last_unit_ && scale && !PLANTED)",
        ["TensorParallelFp8.EveryWayGivesTheSameBits"],
    ),
    (
        "a block's gradient leaves its magnitude to itself",
        STAGE,
        "*below = scale_of_dout(unit - 1, s);",
        "*below = scale_of_dout(PLANTED ? unit : unit - 1, s);",
        ["TensorParallelFp8.EveryWayGivesTheSameBits"],
    ),
    (
        "the magnitude of dqkv leaves dv out",
        "kernels/rope.cpp",
        "a.N, a.row_stride, a.row_stride);",
        "a.N, PLANTED ? a.heads * a.D : a.row_stride, a.row_stride);",
        ["Fp8Training.*"],
    ),
    (
        "weights' scales outlive an update",
        OPTIMIZER,
        "for (int u = 0; u < int(ownership_.units().size()); ++u) params_.publish(u);",
        ";",
        ["Fp8Weights.NothingOlderThanTheParametersIsUsed"],
    ),
    (
        "weights' scales outlive the update after a skipped step",
        OPTIMIZER,
        "for (int u = 0; u < int(ownership_.units().size()); ++u) params_.publish(u);",
        "static thread_local bool skipped = false;\n"
        "    for (int u = 0; u < int(ownership_.units().size()); ++u)\n"
        "        if (!(PLANTED && skipped)) params_.publish(u);\n"
        "    skipped = left_out_;",
        ["Fp8Weights.NothingOlderThanTheParametersIsUsed"],
    ),
    (
        "weights' scales outlive a resume, a rollback, an average that is shown",
        "zero/parameter_cache.cpp",
        "++version_;",
        ";",
        ["Fp8Weights.NothingOlderThanTheParametersIsUsed"],
    ),
    (
        "weights' scales outlive the first time that a step is computed",
        "llama/train/recheck.cpp",
        "core_.zero.params.forget_what_was_made();",
        ";",
        ["Fp8Weights.ARehearsalLeavesNothingToTheStep"],
    ),
    (
        "weights are measured in every pass",
        "llama/model/fp8_weights.cpp",
        "std::exchange(u.version, version) != version",
        "std::exchange(u.version, version) != version || PLANTED",
        ["Fp8Weights.AreMeasuredByTheFirstMicroBatchAfterAnUpdateAlone"],
    ),
    (
        "codes that are kept lie where another weight's do",
        "llama/model/fp8_weights.cpp",
        "at += matrix.size(),",
        "at += PLANTED ? matrix.size() / 2 : matrix.size(),",
        ["Fp8Weights.BitsAreThoseOfMeasuringForEachMicroBatch"],
    ),
    (
        "codes in tiles outlive every other change of the parameters",
        "llama/model/fp8_weights.cpp",
        "if (stale) quantise(s, kept, matrix, numbers);",
        "if (stale && !(PLANTED && !one_scale() && version % 2)) quantise(s, kept, matrix, numbers);",
        ["Fp8Weights.NothingOlderThanTheParametersIsUsed"],
    ),
    (
        "of a kept weight the backward pass makes codes again",
        LINEAR,
        "if (x.codes_t && side.transposed) return",
        "if (x.codes_t && side.transposed && !PLANTED) return",
        ["Fp8Weights.AreQuantisedLikewiseWhereTheirCodesAreKept"],
    ),
    (
        "a gradient is quantised for each of its two products",
        LAYER,
        "if (!p.scales || !fp8_->has_both_ways()) return",
        "if (!p.scales || !fp8_->has_both_ways() || PLANTED) return",
        ["Fp8Weights.AreMeasuredByTheFirstMicroBatchAfterAnUpdateAlone"],
    ),
    (
        "a weight's gradient reads the codes of another layer's dy",
        LAYER,
        "if (p.transposed_of != dy) return",
        "if (PLANTED ? !p.transposed_of : p.transposed_of != dy) return",
        ["TensorParallelFp8.EveryWayGivesTheSameBits"],
    ),
    (
        "each rank of ZeRO-3 has the magnitude of one rank's slices",
        GATHER,
        ".ranks = ranks,\n                       .n = scales_count_,",
        ".ranks = PLANTED ? 1 : ranks,\n                       .n = scales_count_,",
        ["Fp8Gather.GivesTheBitsOfZero0WithWholeParameters"],
    ),
    (
        "with tp each rank has the magnitude of its own rows",
        "llama/parallel/tensor_parallel.cpp",
        "share(compute, reinterpret_cast<float*>(parts),",
        "if (PLANTED) return;\n    share(compute, reinterpret_cast<float*>(parts),",
        ["TensorParallel.RowsHaveTheCodesOfAllRows"],
    ),
    (
        "the head in fp8",
        STAGE,
        "linear(stream_, work_.logits(), x, w, rows, C, V, t);",
        "std::optional<Fp8Linear> wrong;\n"
        "    if (PLANTED && options_.fp8.on()) wrong.emplace(device_, options_.fp8.recipe, std::max(rows, V) * C);\n"
        "    linear(stream_, work_.logits(), x, w, rows, C, V, t, wrong ? &*wrong : nullptr);",
        ["Fp8Training.TheFourLayersOfCoveredBlocksAreInFp8AndTheHeadIsNot"],
    ),
    (
        "codes in tiles along rows, transposed by copying",
        BLOCKS,
        "quantise_matrix(a.y_t, a.scales_t, x, 1, a.columns, a.columns, a.rows, a.tiles);",
        COPIED,
        ["LinearFp8.*"],
    ),
    (
        "E8M0 is rounded down",
        MX,
        "((a & 0x7fffffu) != 0)",
        "(!PLANTED && (a & 0x7fffffu) != 0)",
        ["QuantiseMx.ScalesAreRoundedUp", "LinearFp8.*"],
    ),
    (
        "rows and columns of the swizzle swapped",
        MX,
        "i % 32 * 16 + i % 128 / 32 * 4 + k % 4;",
        "(PLANTED ? k % 4 * 128 + i % 128 : i % 32 * 16 + i % 128 / 32 * 4 + k % 4);",
        ["QuantiseMx.ScalesLieWhereTheLibraryReadsThem"],
    ),
    (
        "fast sums in the weight's gradient",
        LINEAR,
        ".beta = 1,\n                 .dtype = t,\n                 .c_dtype = grad_dtype,\n                 .fast = false",
        ".beta = 1,\n                 .dtype = t,\n                 .c_dtype = grad_dtype,\n                 .fast = PLANTED",
        ["LinearFp8.FastSumsAndTypesAreThoseOfEachProduct"],
    ),
    (
        "clipped before the loss scale is taken out",
        "kernels/global_norm.cpp",
        "double(a.max_norm) / (norm + 1e-6)",
        "double(a.max_norm) / (norm / (a.unscale ? double(*a.unscale) : 1.0) + 1e-6)",
        ["LossScaling.APowerOfTwoOnFp32ChangesNoBit"],
    ),
    (
        "good updates are not counted anew after the scale grew",
        "kernels/loss_scale.h",
        "else if (++s.good >= a.window) {\n        s.good = 0;",
        "else if (++s.good >= a.window) {\n        if (!PLANTED) s.good = 0;",
        ["LossScaling.*"],
    ),
    (
        "the loss scale is not saved",
        "llama/train/ending.cpp",
        "m.loss_scale = {double(l.scale), l.good, l.patience};",
        "m.loss_scale = {};",
        ["TrainerTest.ALossScaleIsResumedInTheMiddleOfItsInterval"],
    ),
    (
        "of the loss scale the good updates are not saved",
        "llama/checkpoint/manifest.cpp",
        '{"good", loss_scale.good}',
        '{"good", PLANTED ? 0 : loss_scale.good}',
        ["TrainerTest.ALossScaleIsResumedInTheMiddleOfItsInterval"],
    ),
    (
        "the loss scale is not restored",
        "llama/train/start.cpp",
        "restore_loss_scale(m.loss_scale, core.zero);",
        ";",
        ["TrainerTest.ALossScaleIsResumedInTheMiddleOfItsInterval"],
    ),
    (
        "each rank decides on an overflow by its own gradients",
        OPTIMIZER,
        "if (!rank_sums_.empty())\n        streams_.mesh.shard()",
        "if (!rank_sums_.empty() && !(PLANTED && loss_scale_))\n        streams_.mesh.shard()",
        ["LossScaling.*"],
    ),
    (
        "a skipped update counts for the bias correction",
        OPTIMIZER,
        ".grad_scale = scale(),\n                                       .beta1",
        ".grad_scale = PLANTED ? [] { static const float kOne = 1; return &kOne; }() : scale(),\n                                       .beta1",
        ["LossScaling.AnOverflowHalvesTheScaleOnAllRanksAndCountsAsNoUpdate"],
    ),
    ("a tile is used again before it has gone", OFFLOAD, "from_host_.wait(tile.gone);", ";", ["Offload.*"]),
    (
        "the norm is read before the last reduce",
        OPTIMIZER,
        "grads_.wait();\n    sum_blocks();",
        "if (!PLANTED) grads_.wait();\n    sum_blocks();",
        ["Offload.*"],
    ),
    (
        "memory of the host that is not pinned",
        OPTIMIZER,
        "streams_.take_pinned(elements, dtype, MemKind::optimizer, name)",
        "PLANTED ? Buffer(Device{DeviceKind::cpu, 0}, elements * size_of(dtype), MemKind::optimizer, name)"
        " : streams_.take_pinned(elements, dtype, MemKind::optimizer, name)",
        ["Offload.TheLedgerHasTwoTilesOnTheDeviceAndTheStateOnTheHost"],
    ),
    (
        "the host updates in a step that is skipped",
        OFFLOAD,
        "a.grad_scale = reinterpret_cast<const float*>(numbers_.bytes_at(16));",
        "static const float kOne = 1;\n"
        "    a.grad_scale = PLANTED ? &kOne : reinterpret_cast<const float*>(numbers_.bytes_at(16));",
        ["Offload.TheOptimizerOnTheHostChangesNoBit"],
    ),
    (
        "copies from the host on the compute stream",
        OFFLOAD,
        "from_host_.copy(piece.*a.where, plus(range.*a.where, first * a.element), n * a.element);",
        "(PLANTED ? streams_.compute : from_host_)"
        ".copy(piece.*a.where, plus(range.*a.where, first * a.element), n * a.element);",
        ["Offload.CopiesRunBesideTheUpdate"],
    ),
]
