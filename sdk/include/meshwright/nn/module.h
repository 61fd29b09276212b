// Modules that strategies can wrap: a holder whose calls run hooks around forward. Nothing else of
// a model changes:
//
//   struct BlockImpl : torch::nn::Module { torch::Tensor forward(const torch::Tensor& x); ... };
//   MESHWRIGHT_MODULE(Block);            // in place of TORCH_MODULE(Block)
//
// The holder contains Hooked<BlockImpl>, whose own `forward` hides BlockImpl's, so hooks run for
// block(x), block->forward(x), inside nn::Sequential and through as<Block>(). They do not run
// through a plain BlockImpl pointer. An idle host costs one branch per call. An implementation that
// is `final` cannot be hooked. Tensors inside arguments and results are found in Tensor, optional,
// vector, map, pair, tuple, and in structs for which an overload `visit_tensors(T&, F)` exists.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "meshwright/export.h"

namespace meshwright {

using TensorRefs = std::vector<at::Tensor*>;

// One call of a module's forward as a function of its tensors, so that it can be run again.
struct ForwardCall {
  std::vector<at::Tensor> inputs;  // the tensors among the arguments, in order
  // Runs forward with other tensors in place of `inputs`; gives the tensors of the result.
  std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)> run;
  std::shared_ptr<const Later> later = {};
};

// What a strategy attaches to a module. Hooks may replace the tensors they see. Not thread-safe;
// change it between steps only.
class MESHWRIGHT_API HookHost {
 public:
  using Hook = std::function<void(torch::nn::Module&, TensorRefs&)>;
  // Runs the call and returns its result tensors; activation checkpointing is one.
  using Around = std::function<std::vector<at::Tensor>(ForwardCall)>;

  HookHost() = default;
  HookHost(const HookHost&) = default;
  HookHost& operator=(const HookHost&) = default;
  virtual ~HookHost();
  // The module's hook host, or nullptr when it was made with TORCH_MODULE.
  static HookHost* of(torch::nn::Module& module);
  // Growth: an interface by id, or nullptr.
  virtual void* extension(uint32_t id);
  // "LlamaDecoderLayer": the class as the model's author wrote it, without "Impl".
  virtual std::string hooked_class_name() const = 0;

  std::vector<Hook> before_forward, after_forward;
  Around around;
  std::shared_ptr<const Later> later = {};
};

namespace detail {

template <class T>
concept VisitsTensors = requires(T& t, void (*f)(at::Tensor&)) { visit_tensors(t, f); };

template <class T>
struct CarriesTensors : std::bool_constant<std::is_same_v<T, at::Tensor> || VisitsTensors<T>> {};
template <class... A>
struct CarriesTensors<std::tuple<A...>> : std::disjunction<CarriesTensors<std::decay_t<A>>...> {};
template <class A, class B>
struct CarriesTensors<std::pair<A, B>> : std::disjunction<CarriesTensors<A>, CarriesTensors<B>> {};
template <class A>
struct CarriesTensors<std::optional<A>> : CarriesTensors<A> {};
template <class A, class L>
struct CarriesTensors<std::vector<A, L>> : CarriesTensors<A> {};
template <class K, class V, class C, class L>
struct CarriesTensors<std::map<K, V, C, L>> : CarriesTensors<V> {};
template <class T>
constexpr bool carries() {
  return CarriesTensors<std::remove_cvref_t<T>>::value;
}

template <class T>
struct IsTuple : std::false_type {};
template <class... A>
struct IsTuple<std::tuple<A...>> : std::true_type {};
template <class A, class B>
struct IsTuple<std::pair<A, B>> : std::true_type {};

// Calls f(Tensor&) for every tensor inside v.
template <class T, class F>
void visit(T& v, F&& f) {
  using U = std::remove_cv_t<T>;
  if constexpr (!carries<T>()) {
    return;
  } else if constexpr (std::is_same_v<U, at::Tensor>) {
    f(const_cast<at::Tensor&>(v));
  } else if constexpr (VisitsTensors<T>) {
    visit_tensors(v, f);
  } else if constexpr (IsTuple<U>::value) {
    std::apply([&](auto&... e) { (visit(e, f), ...); }, v);
  } else if constexpr (requires { v.has_value(); }) {
    if (v) visit(*v, f);
  } else if constexpr (requires { v.begin()->second; }) {
    for (auto& e : v) visit(e.second, f);
  } else {
    for (auto& e : v) visit(e, f);
  }
}
template <class T>
void collect(T& v, TensorRefs& refs) {
  visit(v, [&](at::Tensor& t) { refs.push_back(&t); });
}

// Arguments with tensors are copied (cheap handles), so that a hook may replace the tensors; all
// others stay references.
template <class A>
using Held = std::conditional_t<carries<A>(), std::remove_cvref_t<A>, A&&>;
template <class A>
using PassedOn = std::conditional_t<std::is_lvalue_reference_v<A>, std::remove_reference_t<A>&,
                                    std::remove_reference_t<A>&&>;

// forward under HookHost::around: the call is packed with copies of its arguments, so that it
// outlives them.
template <class T, class R, class... A>
R call_around(T& module, HookHost& host, std::tuple<Held<A>...>& held) {
  static_assert(
      (std::is_copy_constructible_v<std::decay_t<A>> && ...),
      "activation checkpointing runs forward again and needs arguments that can be copied");
  static_assert(!std::is_reference_v<R>,
                "activation checkpointing needs a forward that returns by value");
  auto kept = std::apply(
      [](auto&... e) { return std::make_shared<std::tuple<std::decay_t<A>...>>(e...); }, held);
  auto result = std::make_shared<std::optional<R>>();
  ForwardCall call;
  std::apply([&](auto&... e) { (visit(e, [&](at::Tensor& t) { call.inputs.push_back(t); }), ...); },
             *kept);
  std::weak_ptr<std::optional<R>> first =
      result;  // only the first run gives its value to the caller
  call.run = [&module, kept, first](const std::vector<at::Tensor>& tensors) {
    auto arguments = *kept;
    size_t next = 0;
    std::apply([&](auto&... e) { (visit(e, [&](at::Tensor& t) { t = tensors.at(next++); }), ...); },
               arguments);
    R value = std::apply(
        [&](auto&... e) -> R { return module.T::forward(static_cast<PassedOn<A>>(e)...); },
        arguments);
    std::vector<at::Tensor> out;
    visit(value, [&](at::Tensor& t) { out.push_back(t); });
    if (auto keep = first.lock(); keep && !keep->has_value()) keep->emplace(std::move(value));
    return out;
  };
  std::vector<at::Tensor> outputs = host.around(std::move(call));
  R value = std::move(**result);
  size_t next = 0;
  visit(value, [&](at::Tensor& t) { t = outputs.at(next++); });
  return value;
}

template <class T, class... A>
decltype(auto) hooked_call(T& module, HookHost& host, A&&... a) {
  using R = decltype(module.T::forward(std::forward<A>(a)...));
  if (host.before_forward.empty() && host.after_forward.empty() && !host.around) [[likely]]
    return module.T::forward(std::forward<A>(a)...);
  std::tuple<Held<A>...> held(std::forward<A>(a)...);
  if (!host.before_forward.empty()) {
    TensorRefs refs;
    std::apply([&](auto&... e) { (collect(e, refs), ...); }, held);
    for (auto& hook : host.before_forward) hook(module, refs);
  }
  auto run = [&]() -> R {
    if constexpr (carries<R>() && (std::is_copy_constructible_v<std::decay_t<A>> && ...) &&
                  !std::is_reference_v<R>)
      if (host.around) return call_around<T, R, A...>(module, host, held);
    return std::apply(
        [&](auto&... e) -> R { return module.T::forward(static_cast<PassedOn<A>>(e)...); }, held);
  };
  TensorRefs refs;
  if constexpr (std::is_void_v<R>) {
    run();
    for (auto& hook : host.after_forward) hook(module, refs);
  } else {
    R result = run();
    collect(result, refs);
    for (auto& hook : host.after_forward) hook(module, refs);
    if constexpr (std::is_reference_v<R>)
      return static_cast<R>(result);
    else
      return result;
  }
}

template <class T>
concept OneForward = requires { &T::forward; };

// The exact signature is rebuilt, so that AnyModule and Sequential can deduce it.
template <class T, class M>
struct ShadowExact;
template <class T, class R, class C, class... A>
struct ShadowExact<T, R (C::*)(A...)> : T, HookHost {
  template <class... X>
  explicit ShadowExact(std::in_place_t, X&&... x) : T(std::forward<X>(x)...) {}
  R forward(A... a) {
    return hooked_call(static_cast<T&>(*this), static_cast<HookHost&>(*this),
                       std::forward<A>(a)...);
  }
};
template <class T, class R, class C, class... A>
struct ShadowExact<T, R (C::*)(A...) const> : ShadowExact<T, R (C::*)(A...)> {
  using ShadowExact<T, R (C::*)(A...)>::ShadowExact;
};
// Overloads, templates and default arguments: any call that T's forward takes. Such a module cannot
// go into a Sequential.
template <class T>
struct ShadowAny : T, HookHost {
  template <class... X>
  explicit ShadowAny(std::in_place_t, X&&... x) : T(std::forward<X>(x)...) {}
  template <class... A>
  auto forward(A&&... a) -> decltype(std::declval<T&>().forward(std::forward<A>(a)...)) {
    return hooked_call(static_cast<T&>(*this), static_cast<HookHost&>(*this),
                       std::forward<A>(a)...);
  }
};

// Callable with one argument fewer: it has default arguments, which a pointer to it does not show.
template <class T, class M>
struct HasDefaults : std::false_type {};
template <class T, class L, size_t... I>
constexpr bool callable_with_first(std::index_sequence<I...>) {
  return requires(T& t) { t.forward(std::declval<std::tuple_element_t<I, L>>()...); };
}
template <class T, class R, class C, class... A>
struct HasDefaults<T, R (C::*)(A...)> {
  static constexpr bool value = [] {
    if constexpr (sizeof...(A) == 0)
      return false;
    else
      return callable_with_first<T, std::tuple<A...>>(std::make_index_sequence<sizeof...(A) - 1>{});
  }();
};
template <class T, class R, class C, class... A>
struct HasDefaults<T, R (C::*)(A...) const> : HasDefaults<T, R (C::*)(A...)> {};

template <class T>
struct ShadowOf {
  using type = ShadowAny<T>;
};
template <class T>
  requires OneForward<T>
struct ShadowOf<T> {
  using type = std::conditional_t<HasDefaults<T, decltype(&T::forward)>::value, ShadowAny<T>,
                                  ShadowExact<T, decltype(&T::forward)>>;
};

MESHWRIGHT_API std::string plain_class_name(const std::type_info& type);

}  // namespace detail

template <class T>
struct Hooked final : detail::ShadowOf<T>::type {
  template <class... X>
  explicit Hooked(X&&... x) : detail::ShadowOf<T>::type(std::in_place, std::forward<X>(x)...) {}
  void pretty_print(std::ostream& stream) const override { T::pretty_print(stream); }
  std::string hooked_class_name() const override { return detail::plain_class_name(typeid(T)); }
};

template <class T>
class HookedHolder : public torch::nn::ModuleHolder<Hooked<T>> {
 public:
  using torch::nn::ModuleHolder<Hooked<T>>::ModuleHolder;
  HookedHolder() : torch::nn::ModuleHolder<Hooked<T>>(std::make_shared<Hooked<T>>()) {}
  template <class... A>
  decltype(auto) operator()(A&&... a) {
    return this->impl_->forward(std::forward<A>(a)...);
  }
};

}  // namespace meshwright

// Declares the holder `Name` for `NameImpl`, as TORCH_MODULE(Name) does. Ends with a semicolon.
#define MESHWRIGHT_MODULE(Name) MESHWRIGHT_MODULE_IMPL(Name, Name##Impl)
// Declares the holder `Name` for any implementation class.
#define MESHWRIGHT_MODULE_IMPL(Name, ImplType)                \
  class Name : public ::meshwright::HookedHolder<ImplType> {  \
   public:                                                    \
    using ::meshwright::HookedHolder<ImplType>::HookedHolder; \
    using Impl [[maybe_unused]] = ImplType;                   \
  }
