// The one file that names calrt::. binding/README.md lists its calls, with what is known of each and what is a guess.
#include <calrt/calrt.h>
#include <dlfcn.h>

#include "failure.h"
#include "vendor.h"

namespace calculet::vendor {
namespace {

constexpr double kTimeUnit_s = 1e-3;  // GUESS: GetWaitTime and its like are in milliseconds

calculet_code code_of(calrt::ErrorCode code) {
    switch (code) {
        case calrt::ErrorCode::kInvalid: return CALCULET_INVALID;
        case calrt::ErrorCode::kNoDevice: return CALCULET_NO_DEVICE;
        case calrt::ErrorCode::kNoFile: return CALCULET_NO_FILE;
        case calrt::ErrorCode::kBadCalbin: return CALCULET_BAD_CALBIN;
        case calrt::ErrorCode::kDeviceBusy: return CALCULET_DEVICE_BUSY;
        case calrt::ErrorCode::kTimeout: return CALCULET_UNKNOWN_DMA;  // the driver's own: a transfer may still end
        case calrt::ErrorCode::kCcuFault: return CALCULET_CCU_FAULT;
        case calrt::ErrorCode::kPcieError: return CALCULET_PCIE_ERROR;
        case calrt::ErrorCode::kUnknownDma: return CALCULET_UNKNOWN_DMA;
        case calrt::ErrorCode::kDeviceLost: return CALCULET_DEVICE_LOST;
        case calrt::ErrorCode::kOutputError: return CALCULET_OUTPUT_ERROR;
    }
    return CALCULET_VENDOR_ERROR;
}

// Runs one call of the vendor's; its exceptions become ours.
template <typename Body>
auto call(Body &&body) -> decltype(body()) {
    try {
        return body();
    } catch (const calrt::Error &error) {
        throw Failure(code_of(error.Code()), error.what());
    }
}

class CalrtKv final : public Kv {
   public:
    explicit CalrtKv(std::unique_ptr<calrt::KvManager> manager) : manager_(std::move(manager)) {}

    bool can_allocate(std::uint32_t sequences) override {
        return call([&] { return manager_->canAllocate(sequences); });
    }
    bool allocate(std::uint32_t lane, std::uint32_t tokens, std::uint64_t &sequence) override {
        return call([&] { return manager_->Apply(lane, tokens, &sequence); });  // once: never in a loop (A 5)
    }
    bool release(std::uint64_t sequence) override {
        return call([&] { return manager_->Free(sequence); });
    }
    bool remove_tail(std::uint64_t sequence, std::uint32_t tokens) override {
        return call([&] { return manager_->RemoveTokensAtEnd(sequence, tokens); });
    }
    calrt::KvManager &manager() { return *manager_; }

   private:
    std::unique_ptr<calrt::KvManager> manager_;
};

class CalrtBuffers final : public Buffers {
   public:
    CalrtBuffers(
        std::shared_ptr<calrt::VirtualDevice> device, std::shared_ptr<CalrtKv> kv,
        const std::shared_ptr<calrt::Calbin> &calbin, std::uint32_t submodel, std::uint32_t engine)
        : device_(std::move(device)),
          kv_(std::move(kv)),
          calbin_(calbin),
          input_(calrt::InputBuf::Create(calbin, submodel)),
          output_(calrt::OutputBuf::Create(calbin, submodel)),
          engine_(engine == CALCULET_PONG ? calrt::Engine::kPong : calrt::Engine::kPing) {}

    void map_input(std::uint32_t tensor, void *memory, std::size_t bytes) override {
        call([&] { input_->MapBuf(tensor, memory, bytes); });
    }
    void map_output(std::uint32_t tensor, void *memory, std::size_t bytes) override {
        call([&] { output_->MapBuf(tensor, memory, bytes); });
    }
    void slice_input(std::uint32_t tensor, std::uint32_t axis, std::uint32_t begin, std::uint32_t count) override {
        call([&] { input_->SliceTensor(tensor, axis, begin, count); });
    }
    void slice_output(std::uint32_t tensor, std::uint32_t axis, std::uint32_t begin, std::uint32_t count) override {
        call([&] { output_->SliceTensor(tensor, axis, begin, count); });
    }
    void set_register(std::uint32_t index, std::uint32_t element, std::int64_t value) override {
        call([&] { input_->SetHyperParam(index, element, value); });
    }
    void clear_sequences() override {
        call([&] { input_->ClearKvSeqs(); });
    }
    void set_sequence(std::uint32_t row, std::uint64_t sequence) override {
        call([&] { input_->SetKvSeq(row, sequence); });
    }
    void infer() override {
        call([&] { calrt::infer(*device_, kv_->manager(), *input_, *output_, engine_); });
    }
    void wait() override {
        call([&] { output_->Wait(); });
    }
    Account account() override {
        return call([&] {
            return Account{output_->GetStatus(),
                           output_->GetQueueSubmitted(),
                           output_->GetQueueCompleted(),
                           output_->GetWaitTime() * kTimeUnit_s,
                           output_->GetInputTransferTime() * kTimeUnit_s,
                           output_->GetOutputTransferTime() * kTimeUnit_s};
        });
    }

   private:
    std::shared_ptr<calrt::VirtualDevice> device_;
    std::shared_ptr<CalrtKv> kv_;
    std::shared_ptr<calrt::Calbin> calbin_;  // as the two above: a stuck job keeps all of them
    std::unique_ptr<calrt::InputBuf> input_;
    std::unique_ptr<calrt::OutputBuf> output_;
    calrt::Engine engine_;
};

Description describe(const calrt::CalbinDesc &from) {
    Description to{from.version, from.max_batch_size, from.max_seq_len, from.lanes,
                   from.chips,   from.vocab_size,     from.kv_bytes_per_token, {}};
    for (const auto &submodel : from.submodels) {
        to.submodels.push_back({submodel.name, submodel.model_type, submodel.workload,
                                static_cast<std::uint32_t>(submodel.tar_chip_n.size()), submodel.batch, {}, {}});
        for (const auto &tensor : submodel.tensors)
            to.submodels.back().tensors.push_back({tensor.name, tensor.dtype, tensor.is_output, tensor.shape});
        for (const auto &hyper_param : submodel.hyper_params)
            to.submodels.back().registers.push_back({hyper_param.name, hyper_param.elements});
    }
    return to;
}

class CalrtCalbin final : public Calbin {
   public:
    CalrtCalbin(std::shared_ptr<calrt::VirtualDevice> device, std::shared_ptr<calrt::Calbin> calbin)
        : device_(std::move(device)), calbin_(std::move(calbin)), description_(vendor::describe(calbin_->Describe())) {}

    const Description &describe() const override { return description_; }
    std::vector<Golden> golden() override {
        return call([&] {
            std::vector<Golden> cases;
            for (auto &golden : calbin_->GetGolden())
                cases.push_back({golden.submodel, std::move(golden.tokens), std::move(golden.logits)});
            return cases;
        });
    }
    void configure() override {
        call([&] { device_->Configure(calbin_); });
    }
    std::shared_ptr<Kv> make_kv() override {
        return call([&] { return std::make_shared<CalrtKv>(calrt::KvManager::Create(device_, calbin_)); });
    }
    std::shared_ptr<Buffers> make_buffers(
        const std::shared_ptr<Kv> &kv, std::uint32_t submodel, std::uint32_t engine) override {
        return call([&] {
            return std::make_shared<CalrtBuffers>(
                device_, std::static_pointer_cast<CalrtKv>(kv), calbin_, submodel, engine);
        });
    }

   private:
    std::shared_ptr<calrt::VirtualDevice> device_;
    std::shared_ptr<calrt::Calbin> calbin_;
    Description description_;
};

class CalrtDevice final : public Device {
   public:
    explicit CalrtDevice(std::shared_ptr<calrt::VirtualDevice> device) : device_(std::move(device)) {}

    std::shared_ptr<Calbin> open_calbin(const std::vector<std::string> &shards) override {
        return call([&] { return std::make_shared<CalrtCalbin>(device_, device_->CreateCalbin(shards)); });
    }
    void reset_configuration() override {
        call([&] { device_->ResetConfiguration(); });
    }
    std::pair<double, double> memory_mib() override {
        return call([&] { return device_->GetMemoryUsage(); });
    }
    Status status() override {
        return call([&] {
            auto status = device_->GetStatus();
            return Status{status.word, std::move(status.text), status.queue_submitted, status.queue_completed};
        });
    }
    std::string version() override {
        return call([&] { return device_->GetVersion(); });
    }
    std::string calcore_version() override {
        return call([&] { return device_->GetCalcoreVersion(); });
    }
    std::uint32_t engines() override {
        return call([&] { return device_->Engines(); });
    }

   private:
    std::shared_ptr<calrt::VirtualDevice> device_;
};

}  // namespace

std::shared_ptr<Device> open_device() {
    return call([] { return std::make_shared<CalrtDevice>(calrt::VirtualDevice::Create()); });
}

std::string library_path() {
    Dl_info info{};
    const auto function = reinterpret_cast<void *>(&calrt::infer);
    return dladdr(function, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

bool is_emulator() { return dlsym(RTLD_DEFAULT, "calrt_emulator_marker") != nullptr; }

}  // namespace calculet::vendor
