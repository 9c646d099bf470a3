"""A simulated Rockchip RK1828 behind its host, and the vendor's package for it."""
