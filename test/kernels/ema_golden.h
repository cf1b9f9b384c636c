#pragma once
// Weights after each of some updates, and the moving averages that torch makes of them.
#include <cstdint>

namespace rz::test::ema_golden {

// clang-format off
// torch 2.15.0, by dev/golden/make_ema_golden.py
constexpr int64_t kN = 21, kSteps = 6;
constexpr double kDecays[] = {0.9, 0.999};
constexpr float kWeights[] = {
    -0x1.adfc98p-11f, 0x1.0347e4p-8f, 0x1.703164p-4f, -0x1.636e70p+0f, -0x1.ab8282p+0f,
    0x1.38d43ep+6f, 0x1.03c6e4p+10f, -0x1.7bda30p-11f, -0x1.162b9ep-7f, -0x1.f2744ep-4f,
    -0x1.4bdd4ap-4f, 0x1.b3acdcp+3f, -0x1.04a4b2p+7f, 0x1.510ce4p+9f, -0x1.5ae83cp-10f,
    -0x1.bd91b0p-7f, -0x1.630040p-4f, -0x1.20c57cp-1f, -0x1.4908b4p+4f, -0x1.1d60c6p+5f,
    0x1.11e526p+10f, -0x1.1275d2p-4f, -0x1.432100p-4f, 0x1.e06cd4p-6f, -0x1.66e60ap+0f,
    -0x1.986232p+0f, 0x1.38f978p+6f, 0x1.03c4dep+10f, -0x1.b9d06ep-5f, 0x1.5f0760p-6f,
    -0x1.0e112ep-2f, -0x1.8ed0c6p-4f, 0x1.b41a02p+3f, -0x1.049b5ap+7f, 0x1.512186p+9f,
    0x1.3e3c9cp-3f, -0x1.b83ea2p-4f, -0x1.aed4e8p-3f, -0x1.23f992p-1f, -0x1.485096p+4f,
    -0x1.1e1630p+5f, 0x1.11ecd0p+10f, -0x1.0bd310p-3f, -0x1.3ad9a0p-2f, -0x1.e7d2d0p-8f,
    -0x1.7d7b80p+0f, -0x1.8a67dap+0f, 0x1.38c194p+6f, 0x1.03c16ep+10f, 0x1.da69bcp-6f,
    0x1.045dd4p-3f, -0x1.7f3010p-2f, -0x1.5a9d5ap-4f, 0x1.b40a7ep+3f, -0x1.04b034p+7f,
    0x1.511f16p+9f, 0x1.8cce44p-3f, 0x1.5724c2p-4f, -0x1.53c7f0p-2f, -0x1.9295d2p-2f,
    -0x1.4780e4p+4f, -0x1.1e3676p+5f, 0x1.11efc2p+10f, -0x1.268d7cp-2f, -0x1.ae04f8p-2f,
    -0x1.3e9128p-5f, -0x1.6d7532p+0f, -0x1.8814bep+0f, 0x1.38aaa4p+6f, 0x1.03bc56p+10f,
    -0x1.79ba2ep-3f, 0x1.abaa04p-5f, -0x1.3e44cap-2f, 0x1.01e618p-6f, 0x1.ad0a0ap+3f,
    -0x1.04e308p+7f, 0x1.5120b6p+9f, 0x1.59f1f8p-5f, -0x1.eb2460p-8f, -0x1.a3231cp-3f,
    -0x1.83b948p-2f, -0x1.454f88p+4f, -0x1.1e8372p+5f, 0x1.11f0d6p+10f, -0x1.432e88p-4f,
    -0x1.e45d20p-2f, 0x1.545404p-5f, -0x1.6b90eap+0f, -0x1.8d0d14p+0f, 0x1.38221ep+6f,
    0x1.03be3cp+10f, -0x1.8ce8d4p-3f, 0x1.01a272p-2f, -0x1.8801dcp-2f, -0x1.6ed88ap-5f,
    0x1.ab0af6p+3f, -0x1.04fb1cp+7f, 0x1.512334p+9f, -0x1.e074f0p-4f, 0x1.a298a2p-5f,
    -0x1.3d7352p-2f, -0x1.ecdf28p-2f, -0x1.44b7a2p+4f, -0x1.1f4282p+5f, 0x1.11f2cep+10f,
    0x1.35d068p-6f, -0x1.09e77ep-1f, -0x1.08721cp-3f, -0x1.81c100p+0f, -0x1.ac5d08p+0f,
    0x1.37f786p+6f, 0x1.03b6d8p+10f, -0x1.0fecc0p-3f, 0x1.49c150p-3f, -0x1.e231b0p-2f,
    -0x1.0bfa48p-3f, 0x1.a8e284p+3f, -0x1.0595c4p+7f, 0x1.511548p+9f, -0x1.043e00p-4f,
    -0x1.fcf1dep-5f, -0x1.f94654p-2f, -0x1.116428p-1f, -0x1.42e17ap+4f, -0x1.1f7c18p+5f,
    0x1.11ee64p+10f, 0x1.2c5b78p-4f, -0x1.3768e4p-1f, -0x1.4fe226p-4f, -0x1.712afcp+0f,
    -0x1.8a4634p+0f, 0x1.37c5fcp+6f, 0x1.03b2d4p+10f, 0x1.16ca34p-4f, 0x1.e44260p-3f,
    -0x1.dba842p-2f, -0x1.90f7f4p-3f, 0x1.abf4f0p+3f, -0x1.058420p+7f, 0x1.511688p+9f,
    0x1.f45e20p-7f, -0x1.250732p-3f, -0x1.efbd22p-2f, -0x1.20c5f8p-1f, -0x1.441216p+4f,
    -0x1.214ef6p+5f, 0x1.11f706p+10f};
constexpr float kAverage0[] = {
    -0x1.0065a4p-5f, -0x1.980084p-3f, 0x1.e6fd7cp-6f, -0x1.6ad67ep+0f, -0x1.9fe96cp+0f,
    0x1.3894dcp+6f, 0x1.03c17cp+10f, -0x1.268f06p-5f, 0x1.14235ap-4f, -0x1.fa7600p-3f,
    -0x1.693e7ep-4f, 0x1.b0cc66p+3f, -0x1.04dc7ap+7f, 0x1.511448p+9f, 0x1.5a5fecp-7f,
    -0x1.8f7f4ep-6f, -0x1.b46fc2p-3f, -0x1.0f7d2ep-1f, -0x1.47384ap+4f, -0x1.1e4ae0p+5f,
    0x1.11eae0p+10f};
constexpr float kAverage1[] = {
    -0x1.50f9d2p-10f, 0x1.911b3ep-10f, 0x1.6d39a6p-4f, -0x1.6385e2p+0f, -0x1.ab5c16p+0f,
    0x1.38d38ep+6f, 0x1.03c6d4p+10f, -0x1.3721fcp-10f, -0x1.f16930p-8f, -0x1.f8bc7ap-4f,
    -0x1.4c138ep-4f, 0x1.b3a46ep+3f, -0x1.04a550p+7f, 0x1.510cfep+9f, -0x1.1dff8ap-10f,
    -0x1.c0f7f2p-7f, -0x1.693142p-4f, -0x1.208906p-1f, -0x1.49033cp+4f, -0x1.1d637cp+5f,
    0x1.11e536p+10f};
// clang-format on

}  // namespace rz::test::ema_golden
