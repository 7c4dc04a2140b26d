-- clock: reads the store's clock and by how much it has stepped in all; adds a step that the caller
-- found, once.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the clock (hash steps, lag)
-- ARGV    1 by how much it has stepped, ms (0: only look)
--         2 the steps that the caller knew of when it found that
-- RETURNS {now_ms, steps, lag_ms}
local time, by = redis.call('TIME'), tonumber(ARGV[1])
local stored = redis.call('HMGET', KEYS[1], 'steps', 'lag')
local steps, lag = tonumber(stored[1] or '0'), tonumber(stored[2] or '0')
if by ~= 0 and steps == tonumber(ARGV[2]) then
  steps, lag = steps + 1, lag + by
  redis.call('HDEL', KEYS[1], '') -- a removal first: a full store lets the script go on
  redis.call('HSET', KEYS[1], 'steps', string.format('%d', steps), 'lag', string.format('%d', lag))
end
return { math.floor((time[1] * 1000000 + time[2]) / 1000), steps, lag }
