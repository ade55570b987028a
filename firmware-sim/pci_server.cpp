// SPDX-License-Identifier: Apache-2.0
#include "firmware-sim/pci_server.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

namespace bowhead::device {
namespace {

constexpr int kLookMs = 100;  // for a reason to stop
constexpr int kSocketFlags = SOCK_STREAM | SOCK_CLOEXEC;

Error failed(const std::string& path) {
  return {Status::SYSTEM, fmt::format("{}: {}", path, std::strerror(errno))};
}

/// Waits until the descriptor is ready for `events`, or has an error that a call will report.
/// False: it is time to stop. Connections to `turned_away` are accepted and closed meanwhile.
bool wait_for(int fd, short events, const UniqueFd& turned_away,
              const std::function<bool()>& stops) {
  for (;;) {
    std::array<pollfd, 2> some{{{fd, events, 0}, {turned_away.get(), POLLIN, 0}}};
    (void)poll(some.data(), some.size(), kLookMs);
    if (stops()) return false;
    if (some[0].revents != 0) return true;  // first: it may be that this one left
    if (some[1].revents != 0)
      const UniqueFd other(accept4(turned_away.get(), nullptr, nullptr, SOCK_CLOEXEC));
  }
}

class Connection {
 public:
  Connection(const UniqueFd& fd, const UniqueFd& listener, const std::function<bool()>& stops)
      : fd_(fd.get()), listener_(listener), stops_(stops) {}

  /// False: the peer left, or sent more descriptors than a message can have; or it is time to stop.
  bool receive(std::span<std::byte> to, std::vector<UniqueFd>& descriptors) const {
    while (!to.empty()) {
      if (!wait_for(fd_, POLLIN, listener_, stops_)) return false;
      const ssize_t got = receive_some(to, descriptors);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (got <= 0 || descriptors.size() > VfioUser::kDescriptorsMax) return false;
      to = to.subspan(static_cast<size_t>(got));
    }
    return true;
  }

  bool send(std::span<const std::byte> bytes) const {
    while (!bytes.empty()) {
      if (!wait_for(fd_, POLLOUT, listener_, stops_)) return false;
      const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (sent < 0) return false;
      bytes = bytes.subspan(static_cast<size_t>(sent));
    }
    return true;
  }

 private:
  /// As recv(2). All descriptors that came are owned then; the kernel closed those without room.
  ssize_t receive_some(std::span<std::byte> to, std::vector<UniqueFd>& descriptors) const {
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(VfioUser::kDescriptorsMax * sizeof(int))>
        control;
    iovec part{to.data(), to.size()};
    msghdr head{};
    head.msg_iov = &part;
    head.msg_iovlen = 1;
    head.msg_control = control.data();
    head.msg_controllen = control.size();
    const ssize_t got = recvmsg(fd_, &head, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0) return got;
    for (cmsghdr* one = CMSG_FIRSTHDR(&head); one != nullptr; one = CMSG_NXTHDR(&head, one)) {
      if (one->cmsg_level != SOL_SOCKET || one->cmsg_type != SCM_RIGHTS) continue;
      const size_t count = (one->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < count; ++i) {
        int fd;
        std::memcpy(&fd, CMSG_DATA(one) + i * sizeof fd, sizeof fd);
        descriptors.emplace_back(fd);
      }
    }
    return (head.msg_flags & MSG_CTRUNC) != 0 ? 0 : got;
  }

  const int fd_;
  const UniqueFd& listener_;
  const std::function<bool()>& stops_;
};

/// Until the peer leaves or breaks the protocol, or it is time to stop.
void converse(const Connection& peer, VfioUser& session) {
  std::vector<std::byte> message(VfioUser::kMessageBytesMax);
  for (;;) {
    std::vector<UniqueFd> descriptors;
    const auto header = std::span(message).first<VfioUser::kHeaderBytes>();
    if (!peer.receive(header, descriptors)) return;
    const auto bytes = VfioUser::message_bytes(header);
    if (!bytes) return;
    const auto whole = std::span(message).first(*bytes);
    if (!peer.receive(whole.subspan(VfioUser::kHeaderBytes), descriptors)) return;
    const auto outcome = session.handle(whole, std::move(descriptors));
    if (!peer.send(outcome.reply) || outcome.ends) return;
  }
}

Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path ||
      path.find('\0') != std::string::npos)
    return Error{Status::INVALID_ARGUMENT,
                 fmt::format("'{}': the path of a socket has 1 to {} bytes", path,
                             sizeof address.sun_path - 1)};
  path.copy(address.sun_path, path.size());
  return address;
}

/// Removes a socket on which no process listens. Anything else at the path stays, and is IN_USE.
Result<void> make_way(const std::string& path, const sockaddr_un& address) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) return {};
  const Error in_use{Status::IN_USE, path + (S_ISSOCK(info.st_mode)
                                                 ? ": a process listens there; end it, or give "
                                                   "another path"
                                                 : " exists, and is no socket; give another path")};
  const UniqueFd probe(socket(AF_UNIX, kSocketFlags, 0));
  if (probe.get() < 0) return failed(path);
  if (!S_ISSOCK(info.st_mode) ||
      connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ||
      errno != ECONNREFUSED)
    return in_use;
  if (unlink(path.c_str()) != 0) return failed(path);
  return {};
}

}  // namespace

Result<PciServer> PciServer::listen(const std::string& path) {
  const auto address = address_of(path);
  if (!address) return address.error();
  if (auto free = make_way(path, *address); !free) return free.error();
  UniqueFd listener(socket(AF_UNIX, kSocketFlags | SOCK_NONBLOCK, 0));
  // The mode of the socket's own inode is that of its name: set before others can connect.
  if (listener.get() < 0 || fchmod(listener.get(), 0600) != 0 ||
      bind(listener.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0)
    return failed(path);
  PciServer server(path, std::move(listener));
  if (::listen(server.listener_.get(), /*backlog=*/8) != 0) return failed(path);
  return server;
}

PciServer::~PciServer() {
  if (!path_.empty()) unlink(path_.c_str());
}

Result<void> PciServer::serve(VfioFunction& function, DmaMappings& mappings,
                              const std::function<bool()>& stops) {
  const UniqueFd none;
  while (wait_for(listener_.get(), POLLIN, none, stops)) {
    const UniqueFd connection(
        accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (connection.get() >= 0) {
      serve_connection(connection, listener_, function, mappings, stops);
    } else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
      return failed(path_);
    }
  }
  return {};
}

void serve_connection(const UniqueFd& connection, const UniqueFd& listener, VfioFunction& function,
                      DmaMappings& mappings, const std::function<bool()>& stops) {
  VfioUser session(function, mappings);
  converse(Connection(connection, listener, stops), session);
  // Before the function is reset, which may take long: the machine is not to wait for answers.
  (void)shutdown(connection.get(), SHUT_RDWR);
}

}  // namespace bowhead::device
