// A device with a calbin and a model on it, through the C ABI alone, and the shortest way to say what a test does.
#pragma once

#include <calculet_calrt.h>
#include <calrt/emulator.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "emulated_calbin.h"
#include "history.h"

namespace test {

constexpr double kBound_s = 60.0;  // of a wait that must not hang: far more than it takes

// gtest prints both names where they differ.
inline std::string name(calculet_code code) { return calculet_code_name(code); }
#define EXPECT_CODE(expected, call) EXPECT_EQ(test::name(expected), test::name(call)) << calculet_error_text()
#define ASSERT_CODE(expected, call) ASSERT_EQ(test::name(expected), test::name(call)) << calculet_error_text()

// What the text says must name the culprit.
#define EXPECT_TEXT(part) EXPECT_NE(std::string(calculet_error_text()).find(part), std::string::npos) \
    << calculet_error_text()

struct Sequence {
    std::uint64_t id = 0;
    std::uint32_t length = 0;
    std::uint64_t history = 0;  // as the reference has it
};

class Rig : public ::testing::Test {
   protected:
    void SetUp() override;
    void TearDown() override;

    // The role of the model: 0 is the prefill, then the shape's batches in their order.
    void open(const Shape &shape = {});
    void close();

    Sequence allocate(std::uint32_t lane, std::uint32_t tokens = 100);

    // One row's job: prepared, not submitted.
    calculet_code prepare(
        std::uint32_t engine, std::uint32_t role, const Sequence &sequence, const std::vector<std::int32_t> &tokens,
        std::uint32_t row = 0);
    // The same to its end; `said` gets the best token of the row. Only where all is well is the sequence longer.
    calculet_code run(
        std::uint32_t engine, std::uint32_t role, Sequence &sequence, const std::vector<std::int32_t> &tokens,
        std::int32_t *said = nullptr, double timeout_s = kBound_s, std::uint32_t row = 0);

    static void append(Sequence &sequence, const std::vector<std::int32_t> &tokens);
    static std::int32_t best(const calculet_result &result, std::uint32_t row);

    std::vector<calculet_role> roles;
    std::vector<std::string> role_names;
    std::unique_ptr<CalbinDirectory> files;
    calculet_device *device = nullptr;
    calculet_calbin *calbin = nullptr;
    calculet_model *model = nullptr;
    bool is_lost_expected = false;  // an engine is lost: closing says NOT_QUIET
};

}  // namespace test
