-- token_bucket: the one rate limit of lanes, clients and hosts (GCRA).
-- One may go per `each`, and after a rest as many at once as gather within `burst`, which is a
-- time, too. A bucket is kept as one number: the time at which it will be full again. All times are
-- in the caller's unit.

-- The bucket after one more has gone, whether it might or not.
local function bucket_spent(full_at, at, each) return math.max(full_at, at) + each end

-- How many of `wanted` may go now; the bucket then; from when on one more may go. A bucket owes no
-- more than its burst: the rate may have changed, or the clock been stepped back. Doubles of such a
-- size are not exact, so `tiny` is how much too early one may go: it may be all there ever is room
-- for.
local function bucket_grant(full_at, at, each, burst, wanted, tiny)
  full_at = math.max(at, math.min(full_at, at + burst))
  local granted = wanted
  if wanted > 0 then
    granted = math.min(wanted, math.floor((at + burst - full_at + tiny) / each))
    full_at = full_at + granted * each
  end
  return granted, full_at, full_at - burst + each
end
