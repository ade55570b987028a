// SPDX-License-Identifier: Apache-2.0
#include "firmware-sim/pci_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <vector>

#include "base/clock.h"

namespace bowhead::device {
namespace {

constexpr int kLookMs = 100;  // for a reason to stop
constexpr int kLockMs = 3000;
constexpr int kSocketFlags = SOCK_STREAM | SOCK_CLOEXEC;

Error failed(const std::string& path) {
  return {Status::SYSTEM, fmt::format("{}: {}", path, std::strerror(errno))};
}

/// Where machines come while another one has the function: they are let in and turned out.
class Door {
 public:
  explicit Door(const UniqueFd& listener) : listener_(listener) {}

  int fd() const { return now_ns() < shut_until_ns_ ? -1 : listener_.get(); }
  /// Without a descriptor for it, a machine waits, and would be seen time and again.
  void turn_out() {
    const UniqueFd other(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (other.get() < 0) shut_until_ns_ = now_ns() + uint64_t{kLookMs} * 1'000'000;
  }

 private:
  const UniqueFd& listener_;
  uint64_t shut_until_ns_ = 0;
};

/// Waits until the descriptor is ready for `events`, or has an error that a call will report.
/// False: it is time to stop.
bool wait_for(int fd, short events, Door& door, const std::function<bool()>& stops) {
  for (;;) {
    std::array<pollfd, 2> some{{{fd, events, 0}, {door.fd(), POLLIN, 0}}};
    (void)poll(some.data(), some.size(), kLookMs);
    if (stops()) return false;
    if (some[0].revents != 0) return true;  // first: it may be that this one left
    if (some[1].revents != 0) door.turn_out();
  }
}

class Connection {
 public:
  Connection(const UniqueFd& fd, const UniqueFd& listener, const std::function<bool()>& stops)
      : fd_(fd.get()), door_(listener), stops_(stops) {}

  /// False: the peer left, or broke the protocol (fault()); or it is time to stop.
  bool receive(std::span<std::byte> to, std::vector<UniqueFd>& descriptors) {
    while (!to.empty()) {
      if (!wait_for(fd_, POLLIN, door_, stops_)) return false;
      const ssize_t got = receive_some(to, descriptors);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (got <= 0) return false;
      if (descriptors.size() > VfioUser::kDescriptorsMax)
        fault_ = fmt::format("sent more than {} descriptors", VfioUser::kDescriptorsMax);
      if (!fault_.empty()) return false;
      to = to.subspan(static_cast<size_t>(got));
    }
    return true;
  }

  bool send(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      if (!wait_for(fd_, POLLOUT, door_, stops_)) return false;
      const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (sent < 0) return false;
      bytes = bytes.subspan(static_cast<size_t>(sent));
    }
    return true;
  }

  void note_fault(std::string text) { fault_ = std::move(text); }
  const std::string& fault() const { return fault_; }

 private:
  /// As recv(2). All descriptors that came are owned then; the kernel closed those without room.
  ssize_t receive_some(std::span<std::byte> to, std::vector<UniqueFd>& descriptors) {
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
    if ((head.msg_flags & MSG_CTRUNC) != 0)
      fault_ =
          "sent descriptors for which there is no room: too many of a message, or more than "
          "this process may have (ulimit -n)";
    return got;
  }

  const int fd_;
  Door door_;
  const std::function<bool()>& stops_;
  std::string fault_;
};

/// Until the peer leaves or breaks the protocol, or it is time to stop.
void converse(Connection& peer, VfioUser& session) {
  std::vector<std::byte> message(VfioUser::kMessageBytesMax);
  for (;;) {
    std::vector<UniqueFd> descriptors;
    const auto header = std::span(message).first<VfioUser::kHeaderBytes>();
    if (!peer.receive(header, descriptors)) return;
    const auto bytes = VfioUser::message_bytes(header);
    if (!bytes) return peer.note_fault("sent a message of an impossible length");
    const auto whole = std::span(message).first(*bytes);
    if (!peer.receive(whole.subspan(VfioUser::kHeaderBytes), descriptors)) return;
    const auto outcome = session.handle(whole, std::move(descriptors));
    if (outcome.ends) peer.note_fault("did not begin with a version, or sent no command");
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

std::optional<uint64_t> inode_of(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) return std::nullopt;
  return info.st_ino;
}

/// Of the folder of a path, so that processes make their sockets there one after the other.
Result<UniqueFd> lock_folder(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  UniqueFd fd = open_file(folder, O_RDONLY | O_DIRECTORY);
  if (fd.get() < 0) return failed(path);
  for (int tries = 0; flock(fd.get(), LOCK_EX | LOCK_NB) != 0; ++tries) {
    if (errno != EWOULDBLOCK && errno != EINTR) return failed(path);
    if (tries * kLookMs >= kLockMs)
      return Error{Status::IN_USE, folder + ": another process has locked this folder"};
    (void)poll(nullptr, 0, kLookMs);
  }
  return fd;
}

/// Removes a socket on which no process listens. Anything else at the path stays, and is IN_USE.
Result<void> make_way(const std::string& path, const sockaddr_un& address) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) return {};
  const Error in_use{Status::IN_USE, path + (S_ISSOCK(info.st_mode)
                                                 ? ": a process listens there; end it, or give "
                                                   "another path"
                                                 : " exists, and is no socket; give another path")};
  // One that is asked too much at the moment is there as well: then EAGAIN.
  const UniqueFd probe(socket(AF_UNIX, kSocketFlags | SOCK_NONBLOCK, 0));
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
  const auto lock = lock_folder(path);
  if (!lock) return lock.error();
  if (auto free = make_way(path, *address); !free) return free.error();
  UniqueFd listener(socket(AF_UNIX, kSocketFlags | SOCK_NONBLOCK, 0));
  // The mode of the socket's own inode is that of its name: set before others can connect.
  if (listener.get() < 0 || fchmod(listener.get(), 0600) != 0 ||
      bind(listener.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0)
    return failed(path);
  PciServer server(path, inode_of(path).value_or(0), std::move(listener));
  if (::listen(server.listener_.get(), /*backlog=*/8) != 0) return failed(path);
  return server;
}

PciServer::~PciServer() {
  if (path_.empty()) return;
  const auto lock = lock_folder(path_);
  if (inode_of(path_) == inode_) unlink(path_.c_str());
}

Result<void> PciServer::serve(VfioFunction& function, DmaMappings& mappings,
                              const std::function<bool()>& stops, const Say& say) {
  const UniqueFd none;
  Door no_door(none);
  while (wait_for(listener_.get(), POLLIN, no_door, stops)) {
    const UniqueFd connection(
        accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (connection.get() >= 0) {
      if (say) say("a machine has the function");
      const std::string fault = serve_connection(connection, listener_, function, mappings, stops);
      if (say) say("the machine left" + (fault.empty() ? "" : ", since it " + fault));
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      (void)poll(nullptr, 0, kLookMs);  // it may be better then
    } else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
      return failed(path_);
    }
  }
  return {};
}

std::string serve_connection(const UniqueFd& connection, const UniqueFd& listener,
                             VfioFunction& function, DmaMappings& mappings,
                             const std::function<bool()>& stops) {
  VfioUser session(function, mappings);
  Connection peer(connection, listener, stops);
  converse(peer, session);
  // Before the function is reset, which may take long: the machine is not to wait for answers.
  (void)shutdown(connection.get(), SHUT_RDWR);
  return peer.fault();
}

}  // namespace bowhead::device
