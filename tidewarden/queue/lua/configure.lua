-- configure: write settings of the queue into the shard's record.
-- KEYS    1 the shard  2 the view
-- ARGV    3… pairs of name and value; names: urgent_ms lease_ms late_share early_share order dedup_ms losses_max backoff_cap_ms capacity
--         lane_limit lane_rate (per 1000 s) lane_burst
-- RETURNS 1, or 'NOTEMPTY' when `order` would change while the shard holds tasks
open()
local NAMES = {urgent_ms = 1, lease_ms = 1, late_share = 1, early_share = 1, order = 1, dedup_ms = 1, losses_max = 1, backoff_cap_ms = 1, capacity = 1,
               lane_limit = 1, lane_rate = 1, lane_burst = 1}
for i = 3, #ARGV, 2 do
  if not NAMES[ARGV[i]] then refuse('BADARG no such setting in a shard: ' .. ARGV[i]) end
  if ARGV[i] == 'order' then
    if ARGV[i + 1] ~= 'bands' and ARGV[i + 1] ~= 'edf' then refuse('BADARG order is ' .. tostring(ARGV[i + 1]) .. '; allowed are bands, edf') end
    if ARGV[i + 1] ~= S.order and redis.call('HLEN', key('tasks')) > 0 then return finish('NOTEMPTY') end
  else
    int(i + 1, ARGV[i], 0, NEVER)
  end
end
local capacity = S.capacity
for i = 3, #ARGV, 2 do set(ARGV[i], ARGV[i] == 'order' and ARGV[i + 1] or tonumber(ARGV[i + 1])) end
freed = S.capacity ~= capacity -- there may be room now
return finish(1)
