// The C functions of calculet_calrt.h: arguments checked, thread rules held, exceptions turned into codes.
#include <calculet_calrt.h>

#include <cstring>

#include "calbin.h"
#include "device.h"
#include "model.h"

using calculet::guard;
using calculet::put;
using calculet::require;
using Section = calculet::OneUser::Section;

namespace {

void given(const void *pointer, const char *text) { require(pointer != nullptr, text); }

// Control calls wait for nobody: a job in flight is refused.
void no_job(const calculet_device &device) {
    if (device.has_job()) throw calculet::Failure(CALCULET_WRONG_STATE, "a job is in flight: wait for it first");
}

}  // namespace

// ---- the device ----------------------------------------------------------------------------------------------------

calculet_code calculet_device_open(const calculet_open_options *options, calculet_device **device) {
    return guard([&] {
        given(device, "device: not given");
        const calculet_open_options nothing{};
        *device = new calculet_device(options != nullptr ? *options : nothing);
        return CALCULET_OK;
    });
}

calculet_code calculet_device_close(calculet_device *device) {
    return guard([&] {
        given(device, "device: not given");
        no_job(*device);
        return calculet_device::close(std::unique_ptr<calculet_device>(device));
    });
}

calculet_code calculet_device_holder(const char *lock_path, int64_t *pid, char name[CALCULET_NAME_BYTES]) {
    return guard([&] {
        given(lock_path, "lock_path: not given");
        given(pid, "pid: not given");
        given(name, "name: not given");
        const auto holder = calculet::DeviceLock::holder(lock_path);
        *pid = holder.pid;
        std::memset(name, 0, CALCULET_NAME_BYTES);
        holder.name.copy(name, CALCULET_NAME_BYTES - 1);
        return CALCULET_OK;
    });
}

calculet_code calculet_device_inspect(calculet_device *device, calculet_device_info *info) {
    return guard([&] {
        given(device, "device: not given");
        given(info, "info: not given");
        *info = device->inspect();
        return CALCULET_OK;
    });
}

calculet_code calculet_device_memory(calculet_device *device, calculet_memory *memory) {
    return guard([&] {
        given(device, "device: not given");
        given(memory, "memory: not given");
        *memory = device->memory();
        return CALCULET_OK;
    });
}

calculet_code calculet_device_status(calculet_device *device, calculet_status *status) {
    return guard([&] {
        given(device, "device: not given");
        given(status, "status: not given");
        *status = device->status();
        return CALCULET_OK;
    });
}

calculet_code calculet_device_reset_configuration(calculet_device *device) {
    return guard([&] {
        given(device, "device: not given");
        const Section section(device->control);
        no_job(*device);
        return device->reset_configuration();
    });
}

// ---- calbins -------------------------------------------------------------------------------------------------------

calculet_code calculet_calbin_open(
    calculet_device *device, const char *const *shards, uint32_t shard_count, calculet_calbin **calbin) {
    return guard([&] {
        given(device, "device: not given");
        given(shards, "shards: not given");
        given(calbin, "calbin: not given");
        require(shard_count >= 1 && shard_count <= CALCULET_SHARDS_MAX, "shard_count: from 1 to 64");
        const Section section(device->control);
        std::vector<std::string> paths;
        for (uint32_t index = 0; index < shard_count; ++index) {
            given(shards[index], "shards: one is not given");
            paths.emplace_back(shards[index]);
        }
        *calbin = new calculet_calbin(*device, paths);
        return CALCULET_OK;
    });
}

calculet_code calculet_calbin_close(calculet_calbin *calbin) {
    return guard([&] {
        given(calbin, "calbin: not given");
        const Section section(calbin->device.control);
        if (calbin->models != 0)
            throw calculet::Failure(CALCULET_WRONG_STATE, "a model of this calbin is configured: unload it first");
        delete calbin;
        return CALCULET_OK;
    });
}

calculet_code calculet_calbin_inspect(calculet_calbin *calbin, calculet_calbin_info *info) {
    return guard([&] {
        given(calbin, "calbin: not given");
        given(info, "info: not given");
        *info = calbin->inspect();
        return CALCULET_OK;
    });
}

calculet_code calculet_submodel_inspect(calculet_calbin *calbin, uint32_t submodel, calculet_submodel_info *info) {
    return guard([&] {
        given(calbin, "calbin: not given");
        given(info, "info: not given");
        *info = calbin->inspect_submodel(submodel);
        return CALCULET_OK;
    });
}

calculet_code calculet_tensor_inspect(
    calculet_calbin *calbin, uint32_t submodel, uint32_t tensor, calculet_tensor_info *info) {
    return guard([&] {
        given(calbin, "calbin: not given");
        given(info, "info: not given");
        *info = calbin->inspect_tensor(submodel, tensor);
        return CALCULET_OK;
    });
}

calculet_code calculet_csr_inspect(calculet_calbin *calbin, uint32_t submodel, uint32_t csr, calculet_csr_info *info) {
    return guard([&] {
        given(calbin, "calbin: not given");
        given(info, "info: not given");
        *info = calbin->inspect_csr(submodel, csr);
        return CALCULET_OK;
    });
}

// ---- models --------------------------------------------------------------------------------------------------------

calculet_code calculet_model_configure(
    calculet_calbin *calbin, const calculet_role *roles, uint32_t role_count, calculet_model **model) {
    return guard([&] {
        given(calbin, "calbin: not given");
        given(roles, "roles: not given");
        given(model, "model: not given");
        require(role_count >= 1 && role_count <= CALCULET_SUBMODELS_MAX, "role_count: from 1 to 64");
        const Section section(calbin->device.control);
        no_job(calbin->device);
        *model = new calculet_model(*calbin, roles, role_count);
        return CALCULET_OK;
    });
}

calculet_code calculet_model_unload(calculet_model *model) {
    return guard([&] {
        given(model, "model: not given");
        const Section section(model->device.control);
        return calculet_model::unload(std::unique_ptr<calculet_model>(model));
    });
}

calculet_code calculet_model_golden(calculet_model *model, double timeout_s, calculet_golden *golden) {
    return guard([&] {
        given(model, "model: not given");
        given(golden, "golden: not given");
        const Section section(model->device.control);
        no_job(model->device);
        model->run_golden(timeout_s, *golden);
        return CALCULET_OK;
    });
}

// ---- KV sequences --------------------------------------------------------------------------------------------------

calculet_code calculet_kv_can_allocate(calculet_model *model, uint32_t sequences, uint32_t *fits) {
    return guard([&] {
        given(model, "model: not given");
        given(fits, "fits: not given");
        const Section section(model->kv_user);
        *fits = model->can_allocate(sequences);
        return CALCULET_OK;
    });
}

calculet_code calculet_kv_allocate(calculet_model *model, uint32_t lane, uint32_t tokens, uint64_t *sequence) {
    return guard([&] {
        given(model, "model: not given");
        given(sequence, "sequence: not given");
        const Section section(model->kv_user);
        *sequence = model->allocate(lane, tokens);
        return CALCULET_OK;
    });
}

calculet_code calculet_kv_release(calculet_model *model, uint64_t sequence) {
    return guard([&] {
        given(model, "model: not given");
        const Section section(model->kv_user);
        return model->release(sequence);
    });
}

calculet_code calculet_kv_remove_tail(calculet_model *model, uint64_t sequence, uint32_t tokens) {
    return guard([&] {
        given(model, "model: not given");
        const Section section(model->kv_user);
        return model->remove_tail(sequence, tokens);
    });
}

calculet_code calculet_kv_inspect(calculet_model *model, calculet_kv_info *info) {
    return guard([&] {
        given(model, "model: not given");
        given(info, "info: not given");
        *info = model->inspect_kv();
        return CALCULET_OK;
    });
}

// ---- jobs ----------------------------------------------------------------------------------------------------------

calculet_code calculet_job_prepare(calculet_model *model, uint32_t engine, const calculet_job *job) {
    return guard([&] {
        given(model, "model: not given");
        given(job, "job: not given");
        model->prepare(engine, *job);
        return CALCULET_OK;
    });
}

calculet_code calculet_job_submit(calculet_model *model, uint32_t engine, uint64_t *ticket) {
    return guard([&] {
        given(model, "model: not given");
        given(ticket, "ticket: not given");
        *ticket = model->submit(engine);
        return CALCULET_OK;
    });
}

calculet_code calculet_job_start(calculet_model *model, uint32_t engine, const calculet_job *job, uint64_t *ticket) {
    return guard([&] {
        given(model, "model: not given");
        given(job, "job: not given");
        given(ticket, "ticket: not given");
        model->prepare(engine, *job);
        *ticket = model->submit(engine);
        return CALCULET_OK;
    });
}

calculet_code calculet_job_wait(
    calculet_model *model, uint32_t engine, uint64_t ticket, double timeout_s, calculet_result *result) {
    return guard([&] {
        given(model, "model: not given");
        given(result, "result: not given");
        model->wait(engine, ticket, timeout_s, *result);
        return CALCULET_OK;
    });
}

void calculet_widen(const uint16_t *bfloat16, float *float32, size_t count) {
    for (size_t index = 0; index < count; ++index) {
        const uint32_t bits = uint32_t{bfloat16[index]} << 16;
        std::memcpy(&float32[index], &bits, sizeof bits);
    }
}
