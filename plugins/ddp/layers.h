#pragma once

// Layers are never recomputed whole under ddp, neither in the plan nor in the run (spec 6).
constexpr bool kWholeLayers = false;
