// Repeats recorded calls of the CPU kernel's library, and compares what they write with what is right.
//
//     replay LIBRARY FILE
//
// FILE is written by recorded_calls.py, which describes it. Every instruction set that the library has on this machine
// computes every call: a result may be off by as much as the file allows, and all other memory must stay as it was. Needs
// neither Python nor torch. Exits with 1 if a call failed.
#include <dlfcn.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

typedef int64_t i64;

namespace {

const i64 MAGIC = 0x59414C5045525748;  // "HWREPLAY"
const char* const FUNCTIONS[] = {"hw_attention", "hw_rms_norm", "hw_rotate"};
const char* const ISAS[] = {"portable", "avx2", "avx512", "avx512bf16", "neonbf16"};
enum { FLOAT32, BFLOAT16, FLOAT16, FLOAT64, INT64, BOOL };
const i64 ITEM[] = {4, 2, 2, 8, 8, 1};
const i64 PORTABLE = 0, AVX512BF16 = 3, NEONBF16 = 4;
const i64 GUARD = 64;  // bytes before and behind each region, which nobody may write
const unsigned char UNTOUCHED = 0xA5;
const double UNITS = 16;  // in the last place, allowed beyond what the recording allows to other than portable kernels

[[noreturn]] void stop(const char* message, const char* what) {
    fprintf(stderr, "replay: %s: %s\n", message, what);
    exit(2);
}

struct File {
    std::vector<i64> words;
    size_t at = 0;

    explicit File(const char* path) {
        FILE* file = fopen(path, "rb");
        if (!file || fseek(file, 0, SEEK_END)) stop("cannot be read", path);
        words.resize((size_t)ftell(file) / 8);
        rewind(file);
        if (fread(words.data(), 8, words.size(), file) != words.size()) stop("cannot be read", path);
        fclose(file);
        if (words.size() < 3 || words[0] != MAGIC) stop("holds no recorded calls", path);
    }
    const i64* take(i64 count) {
        if (count < 0 || (size_t)count > words.size() - at) stop("ends early", "the recording");
        at += (size_t)count;
        return words.data() + at - count;
    }
    i64 word() { return *take(1); }
};

struct Region {
    i64 address, bytes;  // where it was recorded
    const char* content;  // null: what the call before has left there
    std::vector<char> before, memory, written;  // memory has GUARD bytes before and behind

    const char* data() const { return memory.data() + GUARD + lead(); }
    char* data() { return memory.data() + GUARD + lead(); }
    i64 lead() const { return (address - (i64)(intptr_t)memory.data()) & (GUARD - 1); }  // tensors are aligned as they were

    void fill(const std::vector<Region>& left) {
        for (const Region& other : left)
            if (!content && other.address == address && other.bytes == bytes) content = other.data();
        if (!content) stop("was not left by the call before", "a region of the recording");
        before.assign(content, content + bytes);
        written.assign((size_t)bytes, 0);
        memory.assign((size_t)(bytes + 3 * GUARD), (char)UNTOUCHED);
        memcpy(data(), content, (size_t)bytes);
    }
};

struct Result {
    i64 address, dtype, size[4], stride[4];
    double allowed, largest;
    const double* right;
};

struct Call {
    const char* name;
    i64 name_bytes, function, count, address_count;
    const i64 *words, *addresses;
    std::vector<Region> regions;
    std::vector<Result> results;

    double epsilon() const {
        const i64 dtype = words[function ? 1 : 3];
        return dtype == FLOAT32 ? 0x1p-23 : dtype == FLOAT16 ? 0x1p-10 : 0x1p-7;
    }
};

Call read_call(File& file, const char* memory) {
    Call call = {};
    call.name_bytes = file.word();
    call.name = (const char*)file.take((call.name_bytes + 7) / 8);
    call.function = file.word();
    call.count = file.word();
    call.words = file.take(call.count);
    call.address_count = file.word();
    call.addresses = file.take(call.address_count);
    call.regions.resize((size_t)file.word());
    for (Region& region : call.regions) {
        region.address = file.word(), region.bytes = file.word();
        const i64 offset = file.word();
        region.content = offset < 0 ? nullptr : memory + offset;
    }
    call.results.resize((size_t)file.word());
    for (Result& result : call.results) {
        result.largest = 0;
        result.address = file.word(), result.dtype = file.word();
        memcpy(result.size, file.take(4), sizeof result.size);
        memcpy(result.stride, file.take(4), sizeof result.stride);
        memcpy(&result.allowed, file.take(1), sizeof result.allowed);
        const i64 count = result.size[0] * result.size[1] * result.size[2] * result.size[3];
        result.right = (const double*)file.take(count);
        for (i64 i = 0; i < count; i++)
            if (isfinite(result.right[i])) result.largest = fmax(result.largest, fabs(result.right[i]));
    }
    return call;
}

Region& region_of(Call& call, i64 address) {
    for (Region& region : call.regions)
        if (address >= region.address && address < region.address + region.bytes) return region;
    stop("is in no region", "an address of the recording");
}

char* moved(Call& call, i64 address) {
    Region& region = region_of(call, address);
    return region.data() + (address - region.address);
}

double number(const char* at, i64 dtype) {
    if (dtype == FLOAT32) return *(const float*)at;
    if (dtype == FLOAT64) return *(const double*)at;
    if (dtype == INT64) return (double)*(const i64*)at;
    if (dtype == BOOL) return *at;
    const uint16_t bits = *(const uint16_t*)at;
    if (dtype == BFLOAT16) {
        const uint32_t wide = (uint32_t)bits << 16;
        float x;
        memcpy(&x, &wide, sizeof x);
        return x;
    }
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double size = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    if (exponent == 31) size = fraction ? NAN : INFINITY;
    return bits >> 15 ? -size : size;
}

// The error of a result as a share of what is allowed, and a line about the first number that is off by more.
double compare(Call& call, i64 number_of_result, i64 isa) {
    const Result& result = call.results[(size_t)number_of_result];
    const bool whole = result.dtype == INT64 || result.dtype == BOOL;
    // The recording allows for the errors of the portable kernel. Others may round weights to the dtype of the call, and
    // cut tiles elsewhere, so that delta is summed from outputs that are rounded to it; which of two keys is the first may
    // hang on that.
    const double allowed = whole ? isa >= AVX512BF16 ? INFINITY : 0
                                 : result.allowed + (isa == PORTABLE ? 0 : UNITS * call.epsilon() * result.largest);
    Region& region = region_of(call, result.address);
    const i64 start = result.address - region.address, item = ITEM[result.dtype];
    const double* right = result.right;
    double worst = 0;
    for (i64 a = 0; a < result.size[0]; a++)
        for (i64 b = 0; b < result.size[1]; b++)
            for (i64 c = 0; c < result.size[2]; c++)
                for (i64 d = 0; d < result.size[3]; d++, right++) {
                    const i64 step = a * result.stride[0] + b * result.stride[1] + c * result.stride[2] + d * result.stride[3];
                    memset(&region.written[(size_t)(start + step * item)], 1, (size_t)item);
                    const double found = number(region.data() + start + step * item, result.dtype);
                    if (found == *right || (isnan(found) && isnan(*right))) continue;
                    const double off = fabs(found - *right);
                    const double share = off <= allowed ? off / allowed : INFINITY;
                    if (share == INFINITY && worst != INFINITY)
                        printf("%s: %.*s: result %lld [%lld, %lld, %lld, %lld] is %.9g, right is %.9g ± %.3g\n", ISAS[isa],
                               (int)call.name_bytes, call.name, (long long)number_of_result, (long long)a, (long long)b,
                               (long long)c, (long long)d, found, *right, allowed);
                    if (share > worst) worst = share;
                }
    return worst;
}

bool only_results_written(const Call& call, const char* isa) {
    for (const Region& region : call.regions) {
        for (i64 i = -GUARD; i < region.bytes + GUARD; i++) {
            const bool inside = i >= 0 && i < region.bytes;
            if (inside && region.written[(size_t)i]) continue;
            if (region.data()[i] == (inside ? region.before[(size_t)i] : (char)UNTOUCHED)) continue;
            printf("%s: %.*s: writes memory that holds no result\n", isa, (int)call.name_bytes, call.name);
            return false;
        }
    }
    return true;
}

// The largest error as a share of what is allowed. left: the regions of the call before, then of this one.
double replay(Call call, void* library, i64 isa, std::vector<Region>& left) {
    typedef i64 (*function)(const i64*, i64, i64);
    const function run = (function)dlsym(library, FUNCTIONS[call.function]);
    if (!run) stop("is not in the library", FUNCTIONS[call.function]);
    for (Region& region : call.regions) region.fill(left);
    std::vector<i64> words(call.words, call.words + call.count);
    for (i64 i = 0; i < call.address_count; i++) {
        i64& word = words[(size_t)call.addresses[i]];
        word = (i64)moved(call, word);
    }
    double worst = 0;
    const i64 code = run(words.data(), call.count, isa);
    if (code) {
        printf("%s: %.*s: returns %lld\n", ISAS[isa], (int)call.name_bytes, call.name, (long long)code);
        worst = INFINITY;
    } else {
        for (size_t i = 0; i < call.results.size(); i++) worst = fmax(worst, compare(call, (i64)i, isa));
        if (!only_results_written(call, ISAS[isa])) worst = INFINITY;
    }
    left.swap(call.regions);
    return worst;
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 3) stop("usage", "replay LIBRARY FILE");
    void* library = dlopen(arguments[1], RTLD_NOW);
    if (!library) stop("cannot be loaded", dlerror());
    i64 (*available)(i64) = (i64(*)(i64))dlsym(library, "hw_isa_available");
    if (!available) stop("is no library of the CPU kernel", arguments[1]);

    File file(arguments[2]);
    file.take(1);
    const i64 bytes = file.word();
    const char* memory = (const char*)file.take(bytes / 8);
    std::vector<Call> calls;
    const i64 many = file.word();
    for (i64 i = 0; i < many; i++) calls.push_back(read_call(file, memory));

    i64 failed = 0;
    for (i64 isa = 0; isa <= NEONBF16; isa++) {
        if (!available(isa)) continue;
        i64 wrong = 0;
        double worst = 0;
        const Call* worst_call = nullptr;
        std::vector<Region> left;
        for (const Call& call : calls) {
            const double share = replay(call, library, isa, left);
            if (share > 1) wrong++;
            else if (share > worst) worst = share, worst_call = &call;
        }
        printf("%s: %lld of %lld calls are right", ISAS[isa], (long long)(many - wrong), (long long)many);
        if (worst_call)
            printf(", with %.2f of the error allowed at most (%.*s)", worst, (int)worst_call->name_bytes, worst_call->name);
        printf("\n");
        failed += wrong;
    }
    return failed != 0;
}
