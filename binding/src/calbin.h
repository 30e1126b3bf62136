// A calbin that was opened, and the roles that a manifest gives its submodels.
#pragma once

#include <calculet_calrt.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device.h"
#include "vendor.h"

struct calculet_calbin {
   public:
    calculet_calbin(calculet_device &device, const std::vector<std::string> &shards);
    ~calculet_calbin();
    calculet_calbin(const calculet_calbin &) = delete;
    calculet_calbin &operator=(const calculet_calbin &) = delete;

    calculet_calbin_info inspect() const;
    calculet_submodel_info inspect_submodel(std::uint32_t index) const;
    calculet_tensor_info inspect_tensor(std::uint32_t submodel, std::uint32_t index) const;
    calculet_csr_info inspect_csr(std::uint32_t submodel, std::uint32_t index) const;

    const calculet::vendor::Submodel &submodel(std::uint32_t index) const;

    calculet_device &device;
    std::shared_ptr<calculet::vendor::Calbin> vendor;
    std::uint32_t models = 0;
};

namespace calculet {

// A role whose names were found: everything a job needs, as indices and extents.
struct Role {
    std::uint32_t role, submodel, batch;
    std::uint32_t row_tokens;  // that one row takes at most
    std::uint32_t tokens, positions, logits, past_register, current_register;
    std::optional<std::uint32_t> mask;
    std::uint32_t vocab_size;
    bool is_bfloat16;
};

// Throws INVALID for a field that is not given, BAD_CALBIN for a name that is not there or is something else.
Role find_role(const calculet_calbin &calbin, const calculet_role &asked);

}  // namespace calculet
