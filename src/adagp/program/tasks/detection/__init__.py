"""The mathematics of object detection: boxes, anchors and targets, the loss, non-maximum suppression, average precision.

Lengths are in units of the image's side (0 to 1). A box is (centre x, centre y, width, height) unless it is said to be in
corners: (left, top, right, bottom).
"""
