#include "tests/sim/sim_transport.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/contract/signals.h"
#include "proto/control.pb.h"

namespace syncgrads::sim {
namespace {

Service& ServiceOf(const Stream& stream) { return dynamic_cast<Service&>(*stream.server()); }

class SimDataStream : public client::DataStream {
 public:
  SimDataStream(Network& network, Process& process, Checker& checker, const std::string& address,
                std::shared_ptr<client::DataStreamEvents> events)
      : checker_(checker) {
    Stream::ClientEnd end;
    end.on_written = [events] { events->OnWritten(); };
    end.on_closed = [events](absl::Status status) { events->OnClosed(std::move(status)); };
    end.on_message = [this_member = member_, events, &network, &checker](Freight& freight) {
      auto bytes = std::make_shared<std::string>(static_cast<Frame&>(freight).Bytes());
      if (*bytes != static_cast<Frame&>(freight).at_first()) {
        return network.world().Fail("a result was overwritten on its way to a worker");
      }
      const absl::StatusOr<UpdateFrame> update = DecodeUpdate({SpanOf(*bytes)});
      if (!update.ok()) return network.world().Fail("an answer that cannot be read");
      checker.OnAnswer(*this_member, *update);
      events->OnReceived({{SpanOf(*bytes)}, bytes});
    };
    stream_ = std::make_shared<Stream>(network, process, address, /*loose=*/true, std::move(end));
  }

  void Start() override {
    stream_->Start([](std::shared_ptr<Stream> stream) {
      Service& service = ServiceOf(*stream);
      return service.AcceptData(std::move(stream));
    });
  }
  bool Write(std::shared_ptr<const client::OutgoingMessage> message) override {
    auto frame = std::make_shared<Frame>(message->header(), message->payload(), message);
    const absl::StatusOr<PushFrame> push = DecodePush({SpanOf(frame->at_first())});
    if (push.ok() && push->header.hello.has_value()) {
      *member_ = push->header.hello->member;
    } else {
      checker_.OnPushWritten(frame->at_first());
    }
    message = nullptr;
    stream_->Write(std::move(frame));
    return false;
  }
  void Cancel() override { stream_->Cancel(); }

 private:
  Checker& checker_;
  std::shared_ptr<Stream> stream_;
  // The member in the stream's hello.
  const std::shared_ptr<MemberId> member_ = std::make_shared<MemberId>();
};

class SimControlStream : public client::ControlStream {
 public:
  SimControlStream(Network& network, Process& process, const std::string& address,
                   std::shared_ptr<client::ControlStreamEvents> events) {
    Stream::ClientEnd end;
    end.on_written = [events] { events->OnWritten(); };
    end.on_closed = [events](absl::Status status) { events->OnClosed(std::move(status)); };
    end.on_message = [events, &network](Freight& freight) {
      const v1::JobSignal& proto = static_cast<Signal<v1::JobSignal>&>(freight).message;
      absl::StatusOr<std::optional<JobSignal>> signal = FromProto(proto);
      if (!signal.ok()) {
        return network.world().Fail(
            absl::StrCat("a signal that cannot be read: ", signal.status().message()));
      }
      if (signal->has_value()) events->OnReceived(**std::move(signal));
    };
    stream_ = std::make_shared<Stream>(network, process, address, /*loose=*/false, std::move(end));
  }

  void Start() override {
    stream_->Start([](std::shared_ptr<Stream> stream) {
      Service& service = ServiceOf(*stream);
      return service.AcceptControl(std::move(stream));
    });
  }
  void Write(const WorkerSignal& signal) override {
    stream_->Write(std::make_shared<Signal<v1::WorkerSignal>>(ToProto(signal)));
  }
  void Cancel() override { stream_->Cancel(); }

 private:
  std::shared_ptr<Stream> stream_;
};

}  // namespace

std::shared_ptr<client::DataStream> SimTransport::OpenData(
    const std::string& address, std::shared_ptr<client::DataStreamEvents> events) {
  return std::make_shared<SimDataStream>(network_, process_, checker_, address, std::move(events));
}

std::shared_ptr<client::ControlStream> SimTransport::OpenControl(
    const std::string& address, std::shared_ptr<client::ControlStreamEvents> events) {
  return std::make_shared<SimControlStream>(network_, process_, address, std::move(events));
}

void SimTransport::Explain(const std::string& address, const std::string& job, const std::string&,
                           GroupId group, absl::Duration timeout, ExplainAnswer answer) {
  World& world = network_.world();
  world.After(process_, network_.options().most_delay,
              [this, address, job, group, timeout, answer = std::move(answer)] {
                Process* const server = network_.At(address);
                if (server == nullptr || network_.IsCutOff(*server)) {
                  return answer(absl::UnavailableError(absl::StrCat("nobody at ", address)));
                }
                if (server->frozen()) {
                  return network_.world().After(process_, timeout, [address, answer] {
                    answer(absl::DeadlineExceededError(absl::StrCat("no answer from ", address)));
                  });
                }
                answer(dynamic_cast<Service&>(*server).Explain(job, group));
              });
}

void SimTimers::After(absl::Duration delay, std::function<void()> call) {
  world_.After(process_, delay, [running = running_, call = std::move(call)] {
    if (*running) call();
  });
}

}  // namespace syncgrads::sim
