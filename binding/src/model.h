// A calbin on the device: its roles, one set of buffers for each engine and role, its sequences, its jobs.
#pragma once

#include <calculet_calrt.h>

#include <array>
#include <memory>
#include <vector>

#include "calbin.h"
#include "page_memory.h"
#include "sequences.h"

struct calculet_model {
   public:
    // Configures the device. Throws, with the configuration cleared again, where anything fails.
    calculet_model(calculet_calbin &calbin, const calculet_role *roles, std::uint32_t role_count);
    ~calculet_model();
    calculet_model(const calculet_model &) = delete;
    calculet_model &operator=(const calculet_model &) = delete;

    static calculet_code unload(std::unique_ptr<calculet_model> model);
    void run_golden(double timeout_s, calculet_golden &golden);

    bool can_allocate(std::uint32_t count);
    std::uint64_t allocate(std::uint32_t lane, std::uint32_t tokens);
    calculet_code release(std::uint64_t sequence);
    calculet_code remove_tail(std::uint64_t sequence, std::uint32_t tokens);
    calculet_kv_info inspect_kv() const;

    void prepare(std::uint32_t engine, const calculet_job &job);
    std::uint64_t submit(std::uint32_t engine);
    void wait(std::uint32_t engine, std::uint64_t ticket, double timeout_s, calculet_result &result);

    calculet_device &device;
    calculet::OneUser kv_user{"the KV calls"};

   private:
    // The buffers of one role on one engine: ours, mapped into the vendor's. A stuck job keeps all of it.
    struct Slot {
        Slot(const calculet::Role &role, std::shared_ptr<calculet::vendor::Buffers> buffers);
        calculet::PageMemory tokens, positions, mask, logits;
        std::shared_ptr<calculet::vendor::Buffers> buffers;
    };

    // What an engine's prepared or running job is.
    struct Work {
        const calculet::Role *role = nullptr;
        std::shared_ptr<Slot> slot;
        std::array<calculet::Hold, CALCULET_BATCH_MAX> holds;
        std::uint32_t hold_count = 0;
        bool wants_logits = false;
    };

    void make_slots();
    void check(const calculet::Role &role, const calculet_job &job) const;
    void fill(Work &work, const calculet_job &job);
    bool replay(const calculet::vendor::Golden &recorded, double timeout_s, float &difference);
    std::uint32_t role_of(std::uint32_t submodel) const;  // index of a prefill role; role_count for none

    calculet_calbin &calbin_;
    std::vector<calculet::Role> roles_;
    std::shared_ptr<calculet::vendor::Kv> kv_;
    calculet::Sequences sequences_;
    std::vector<std::shared_ptr<Slot>> slots_;  // engine by engine, role by role
    std::array<Work, CALCULET_ENGINES_MAX> work_;
};
