// One instruction set's kernel: compiled once for each of them.
#include "all_heads.h"
#include "backward.h"
#include "decode.h"
#include "forward.h"
#include "roof.h"
#include "scores.h"
#include "stick_breaking.h"
#include "tokens.h"

#define HW_JOIN(name, isa) hw_##name##_##isa
#define HW_NAME(name, isa) HW_JOIN(name, isa)

namespace {

template <class T, class Packing>
i64 run(const Call& call) {
    Attention<T, Packing> attention(call);
    return attention.run();
}

#if defined(HW_BF16_PAIRS)
typedef Bf16Pairs HalfPacking;
#else
typedef Float32 HalfPacking;
#endif

}  // namespace

extern "C" int64_t HW_NAME(run, HW_ISA_NAME)(const int64_t* words, int64_t count) {
    Call call;
    if (int64_t wrong = Reader(words, count).read(call)) return wrong;
    if (call.dtype == FLOAT32) return run<F32, Float32>(call);
    return call.dtype == BFLOAT16 ? run<BF16, HalfPacking>(call) : run<F16, Float32>(call);
}

extern "C" int64_t HW_NAME(rms_norm, HW_ISA_NAME)(const int64_t* words, int64_t count) {
    return tokens::norm(words, count);
}

extern "C" int64_t HW_NAME(rotate, HW_ISA_NAME)(const int64_t* words, int64_t count) {
    return tokens::rotate(words, count);
}
