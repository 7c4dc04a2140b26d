-- configure: write settings of the queue into the shard's record.
-- KEYS    1 the shard  2 the view
-- ARGV    3… pairs of name and value; names: urgent_ms urgent_max_ms lease_ms late_share early_share order dedup_ms losses_max backoff_cap_ms capacity history layout
--         lane_limit lane_rate (per 1000 s) lane_burst
-- RETURNS 1, or 'NOTEMPTY' when `order` or `layout` would change while the shard holds tasks, or `layout` while it has schedules
-- A new `layout` closes the shard to everybody who does not know of it: what comes next is put where the queue's new settings say.
open()
local NAMES = {urgent_ms = 1, urgent_max_ms = 1, lease_ms = 1, late_share = 1, early_share = 1, order = 1, dedup_ms = 1, losses_max = 1, backoff_cap_ms = 1, capacity = 1,
               history = 1, layout = 1, lane_limit = 1, lane_rate = 1, lane_burst = 1}
for i = 3, #ARGV, 2 do
  if not NAMES[ARGV[i]] then refuse('BADARG no such setting in a shard: ' .. ARGV[i]) end
  if ARGV[i] == 'order' then
    if ARGV[i + 1] ~= 'bands' and ARGV[i + 1] ~= 'edf' then refuse('BADARG order is ' .. tostring(ARGV[i + 1]) .. '; allowed are bands, edf') end
    if ARGV[i + 1] ~= S.order and not no_tasks() then return finish('NOTEMPTY') end
  else
    local n = int(i + 1, ARGV[i], 0, NEVER)
    local used = ARGV[i] == 'layout' and n ~= S.layout and (not no_tasks() or redis.call('EXISTS', key('schedules')) == 1)
    if used then return finish('NOTEMPTY') end
  end
end
local capacity = S.capacity
for i = 3, #ARGV, 2 do set(ARGV[i], ARGV[i] == 'order' and ARGV[i + 1] or tonumber(ARGV[i + 1])) end
freed = S.capacity ~= capacity -- there may be room now
return finish(1)
