// The two operators of torchvision that detection networks need and that are no part of libtorch, under torchvision's names. They compute what
// torchvision 0.26 does: csrc/ops/cpu/nms_kernel.cpp, csrc/ops/cpu/roi_align_kernel.cpp and, on other devices, ops/roi_align.py (`_roi_align`).
//
// The greedy choice of `nms` is sequential and its result has as many elements as are chosen: on a GPU it is made on the CPU, which waits for the
// boxes. `roi_align` runs on the device, as operators of libtorch, which also compute it for the types that the loops for the CPU do not have.

#include "call.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

namespace {

// Returns the boxes, by falling score, that overlap none chosen before by more than the threshold.
template <typename T>
at::Tensor nms_of(const at::Tensor &dets, const at::Tensor &scores, double iou_threshold) {
  const at::Tensor boxes = dets.contiguous();
  const at::Tensor order = std::get<1>(scores.sort(/*stable=*/true, /*dim=*/0, /*descending=*/true)).contiguous();
  const auto *box = boxes.const_data_ptr<T>();
  const auto *by_score = order.const_data_ptr<int64_t>();
  const int64_t count = boxes.size(0);
  std::vector<T> areas(count);
  for (int64_t i = 0; i < count; ++i) {
    areas[i] = (box[4 * i + 2] - box[4 * i]) * (box[4 * i + 3] - box[4 * i + 1]);
  }
  std::vector<bool> suppressed(count);
  std::vector<int64_t> kept;
  for (int64_t a = 0; a < count; ++a) {
    const int64_t i = by_score[a];
    if (suppressed[i]) {
      continue;
    }
    kept.push_back(i);
    for (int64_t b = a + 1; b < count; ++b) {
      const int64_t j = by_score[b];
      const T width = std::min(box[4 * i + 2], box[4 * j + 2]) - std::max(box[4 * i], box[4 * j]);
      const T height = std::min(box[4 * i + 3], box[4 * j + 3]) - std::max(box[4 * i + 1], box[4 * j + 1]);
      const T both = std::max(static_cast<T>(0), width) * std::max(static_cast<T>(0), height);
      // Boxes without an area have no ratio, which is above no threshold.
      if (both / (areas[i] + areas[j] - both) > iou_threshold) {
        suppressed[j] = true;
      }
    }
  }
  return at::tensor(kept, order.options());
}

at::Tensor nms(const at::Tensor &dets, const at::Tensor &scores, double iou_threshold) {
  TORCH_CHECK(dets.dim() == 2 && dets.size(1) == 4, "nms: boxes must have the shape [N, 4], not ", dets.sizes());
  TORCH_CHECK(scores.dim() == 1 && scores.size(0) == dets.size(0), "nms: there must be a score for each box");
  TORCH_CHECK(dets.scalar_type() == scores.scalar_type(), "nms: boxes and scores must have the same type");
  TORCH_CHECK(dets.device() == scores.device(), "nms: boxes and scores must be on the same device");
  if (dets.numel() == 0) {
    return at::empty({0}, dets.options().dtype(at::kLong));
  }
  if (!dets.is_cpu()) {
    return nms(dets.cpu(), scores.cpu(), iou_threshold).to(dets.device());
  }
  if (dets.scalar_type() == at::kBFloat16) {
    return nms(dets.to(at::kFloat), scores.to(at::kFloat), iou_threshold);
  }
  at::Tensor result;
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(dets.scalar_type(), "nms",
                                      [&] { result = nms_of<scalar_t>(dets, scores, iou_threshold); });
  return result;
}

// The most samples along one axis of a part of a region: a client's region may be of any size.
constexpr double kMostSamples = 4096;

// The number of samples along one axis of a part of a region.
int64_t samples_of(double size, int64_t sampling_ratio) {
  if (sampling_ratio > 0) {
    return sampling_ratio;
  }
  TORCH_CHECK(size <= kMostSamples, "roi_align: a region has parts of ", size, " pixels; the limit is ", kMostSamples);
  return std::max<int64_t>(static_cast<int64_t>(std::ceil(std::max(size, 0.0))), 0);
}

// A sample of bilinear interpolation along one axis: two places and their weights.
template <typename T>
struct Sample {
  int64_t low;
  int64_t high;
  T weight_low;
  T weight_high;
};

template <typename T>
Sample<T> sample(T at, int64_t size) {
  at = std::max(at, static_cast<T>(0));
  int64_t low = static_cast<int64_t>(at);
  int64_t high = low + 1;
  if (low >= size - 1) {
    low = high = size - 1;
    at = static_cast<T>(low);
  }
  const T weight = at - static_cast<T>(low);
  return {low, high, static_cast<T>(1) - weight, weight};
}

template <typename T>
void roi_align_of(const at::Tensor &input, const at::Tensor &rois, at::Tensor &output, double scale, int64_t sampling_ratio,
                  bool aligned) {
  const int64_t channels = input.size(1), height = input.size(2), width = input.size(3);
  const int64_t rows = output.size(2), columns = output.size(3);
  const auto *in = input.const_data_ptr<T>();
  const auto *roi = rois.const_data_ptr<T>();
  auto *out = output.mutable_data_ptr<T>();
  const auto spatial_scale = static_cast<T>(scale);
  at::parallel_for(0, rois.size(0), 1, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const T offset = static_cast<T>(aligned ? 0.5 : 0.0);
      const auto batch = static_cast<int64_t>(roi[5 * n]);
      TORCH_CHECK(batch >= 0 && batch < input.size(0), "roi_align: a region is in image ", batch, " of ", input.size(0));
      const T left = roi[5 * n + 1] * spatial_scale - offset, top = roi[5 * n + 2] * spatial_scale - offset;
      T roi_width = roi[5 * n + 3] * spatial_scale - offset - left, roi_height = roi[5 * n + 4] * spatial_scale - offset - top;
      if (!aligned) {
        roi_width = std::max(roi_width, static_cast<T>(1));
        roi_height = std::max(roi_height, static_cast<T>(1));
      }
      const T bin_height = roi_height / static_cast<T>(rows), bin_width = roi_width / static_cast<T>(columns);
      const int64_t grid_height = samples_of(static_cast<double>(bin_height), sampling_ratio);
      const int64_t grid_width = samples_of(static_cast<double>(bin_width), sampling_ratio);
      const T count = static_cast<T>(std::max<int64_t>(grid_height * grid_width, 1));
      for (int64_t c = 0; c < channels; ++c) {
        const T *plane = in + (batch * channels + c) * height * width;
        for (int64_t row = 0; row < rows; ++row) {
          for (int64_t column = 0; column < columns; ++column) {
            T sum = 0;
            for (int64_t iy = 0; iy < grid_height; ++iy) {
              const T y = top + static_cast<T>(row) * bin_height +
                          (static_cast<T>(iy) + static_cast<T>(0.5)) * bin_height / static_cast<T>(grid_height);
              for (int64_t ix = 0; ix < grid_width; ++ix) {
                const T x = left + static_cast<T>(column) * bin_width +
                            (static_cast<T>(ix) + static_cast<T>(0.5)) * bin_width / static_cast<T>(grid_width);
                // A coordinate that is no number is nowhere.
                if (!(y >= -1.0 && y <= height && x >= -1.0 && x <= width)) {
                  continue;
                }
                const auto v = sample<T>(y, height), h = sample<T>(x, width);
                sum += v.weight_low * (h.weight_low * plane[v.low * width + h.low] + h.weight_high * plane[v.low * width + h.high]) +
                       v.weight_high * (h.weight_low * plane[v.high * width + h.low] + h.weight_high * plane[v.high * width + h.high]);
              }
            }
            out[((n * channels + c) * rows + row) * columns + column] = sum / count;
          }
        }
      }
    }
  });
}

// The places of the samples along one axis of one region, [bins, samples], as torchvision has them.
struct Axis {
  at::Tensor low;
  at::Tensor high;
  at::Tensor weight_low;
  at::Tensor weight_high;
};

Axis axis_of(const at::Tensor &start, const at::Tensor &bin, int64_t bins, int64_t samples, int64_t size) {
  const auto options = start.options();
  const at::Tensor bin_index = at::arange(bins, options).unsqueeze(1);
  const at::Tensor within = (at::arange(samples, options).unsqueeze(0) + 0.5) / static_cast<double>(std::max<int64_t>(samples, 1));
  const at::Tensor at = start + bin_index * bin + within * bin;
  const at::Tensor inside = at.ge(-1.0).logical_and(at.le(static_cast<double>(size))).to(options.dtype());
  const at::Tensor place = at.clamp(0.0, static_cast<double>(size - 1));
  const at::Tensor low = place.floor();
  const at::Tensor weight = place - low;
  const at::Tensor low_index = low.to(at::kLong);
  return {low_index, (low_index + 1).clamp_max(size - 1), (1 - weight) * inside, weight * inside};
}

// Computes a region by operators of libtorch: bilinear interpolation is separable.
at::Tensor roi_align_region(const at::Tensor &image, const at::Tensor &roi, double scale, int64_t rows, int64_t columns,
                            int64_t sampling_ratio, bool aligned) {
  const double offset = aligned ? 0.5 : 0.0;
  const at::Tensor corners = roi.slice(0, 1) * scale - offset;
  at::Tensor sizes = corners.slice(0, 2) - corners.slice(0, 0, 2);
  if (!aligned) {
    sizes = sizes.clamp_min(1.0);
  }
  const at::Tensor bin_width = sizes[0] / static_cast<double>(columns), bin_height = sizes[1] / static_cast<double>(rows);
  TORCH_CHECK(corners.isfinite().all().item<bool>(), "roi_align: a region has a corner that is no number");
  const int64_t grid_height = samples_of(bin_height.item<double>(), sampling_ratio);
  const int64_t grid_width = samples_of(bin_width.item<double>(), sampling_ratio);
  if (grid_height == 0 || grid_width == 0) {
    return at::zeros({image.size(0), rows, columns}, image.options());
  }
  const Axis y = axis_of(corners[1], bin_height, rows, grid_height, image.size(1));
  const Axis x = axis_of(corners[0], bin_width, columns, grid_width, image.size(2));
  const auto along = [](const at::Tensor &tensor, int64_t axis, const Axis &samples) {
    std::vector<int64_t> shape(2, 1);
    shape[axis - 1] = samples.low.numel();
    const auto weighted = [&](const at::Tensor &index, const at::Tensor &weight) {
      return tensor.index_select(axis, index.flatten()) * weight.flatten().view(shape);
    };
    return weighted(samples.low, samples.weight_low) + weighted(samples.high, samples.weight_high);
  };
  const at::Tensor values = along(along(image, 1, y), 2, x);
  return values.view({image.size(0), rows, grid_height, columns, grid_width}).mean({2, 4});
}

at::Tensor roi_align(const at::Tensor &input, const at::Tensor &rois, double spatial_scale, int64_t pooled_height,
                     int64_t pooled_width, int64_t sampling_ratio, bool aligned) {
  TORCH_CHECK(input.dim() == 4, "roi_align: the input must have the shape [N, C, H, W], not ", input.sizes());
  TORCH_CHECK(rois.dim() == 2 && rois.size(1) == 5, "roi_align: regions must have the shape [K, 5], not ", rois.sizes());
  TORCH_CHECK(input.scalar_type() == rois.scalar_type(), "roi_align: input and regions must have the same type");
  TORCH_CHECK(input.device() == rois.device(), "roi_align: input and regions must be on the same device");
  at::Tensor output = at::zeros({rois.size(0), input.size(1), pooled_height, pooled_width}, input.options());
  if (output.numel() == 0) {
    return output;
  }
  TORCH_CHECK(input.numel() > 0, "roi_align: the input is empty: ", input.sizes());
  if (input.is_cpu() && input.scalar_type() != at::kBFloat16) {
    const at::Tensor images = input.contiguous(), regions = rois.contiguous();
    AT_DISPATCH_FLOATING_TYPES_AND_HALF(input.scalar_type(), "roi_align", [&] {
      roi_align_of<scalar_t>(images, regions, output, spatial_scale, sampling_ratio, aligned);
    });
    return output;
  }
  const at::Tensor images = rois.select(1, 0).to(at::kLong).cpu();
  for (int64_t n = 0; n < rois.size(0); ++n) {
    const int64_t batch = images[n].item<int64_t>();
    TORCH_CHECK(batch >= 0 && batch < input.size(0), "roi_align: a region is in image ", batch, " of ", input.size(0));
    const at::Tensor image = input.select(0, batch).to(at::kFloat);
    output[n].copy_(
        roi_align_region(image, rois[n].to(at::kFloat), spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned));
  }
  return output;
}

// Registers the operators, unless torchvision itself is loaded.
bool register_detection() {
  const auto register_one = [](const char *name, const char *schema, torch::CppFunction function) {
    if (c10::Dispatcher::singleton().findSchema({std::string("torchvision::") + name, ""})) {
      return;
    }
    // It lives as long as the process.
    auto *library = new torch::Library(torch::Library::FRAGMENT, "torchvision", std::nullopt, __FILE__, __LINE__);
    library->def(schema);
    library->impl(name, std::move(function));
  };
  register_one("nms", "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
               torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(nms)));
  register_one("roi_align",
               "roi_align(Tensor input, Tensor rois, float spatial_scale, int pooled_height, int pooled_width, int "
               "sampling_ratio, bool aligned) -> Tensor",
               torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(roi_align)));
  return true;
}

const bool detection_is_registered = register_detection();

}  // namespace
