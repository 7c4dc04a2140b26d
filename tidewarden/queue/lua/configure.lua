-- configure: writes settings of the queue into the shard's record.
-- DURABILITY none
-- GROWS   no
-- EACH    of several shards of one server in one call
-- KEYS    1 the shard  2 the view
-- ARGV    3… pairs of name and value; names: those of the settings that are in_shard (see
--         queue/settings.py; lane_rate is per 1000 s), layout, same_layout, last_layout,
--         unused_layout; view and n, the last lease of the queue's former shards
-- RETURNS 1; 2: the rules of its lanes are others now; minus the version that the shard has, which
--         is newer: nothing was written; 'NOTEMPTY' when `layout` would change while the shard
--         holds tasks or has schedules, `same_layout` or `order` while it holds tasks,
--         `last_layout` while it has schedules, `unused_layout` while it is in use, too: nothing
--         was written, but with a `version` all the others
-- A new `layout` closes the shard to everybody who does not know of it: what comes next is put
-- where the queue's new settings say. `same_layout` does likewise where the queue stays in as many
-- shards, `last_layout` where it is dropped, `unused_layout` where it ends because nobody uses it
-- (see unused.lua). `version` is that of the settings, of which each is written once. An id may lie
-- in another shard from now on, so `view` and `n` are written where the shard's own are lower.
open()
local NAMES = {
  layout = 0,
  same_layout = 0,
  last_layout = 0,
  unused_layout = 0,
  view = 0,
  n = 0, --[[QUEUE_SETTINGS]]
}

local function in_use()
  for word in string.gmatch(S.holders, '%S+') do
    if redis.call('EXISTS', key('leased:' .. word)) == 1 then return true end
  end
  return S.waiting ~= '' or S.expire_ms == 0 or now - S.used < S.expire_ms
end
local values, reply = {}, 1
for i = 3, #ARGV, 2 do
  local name, value = ARGV[i], ARGV[i + 1]
  if not NAMES[name] then refuse('BADARG no such setting in a shard: ' .. name) end
  if name == 'order' then
    if value ~= 'bands' and value ~= 'edf' then
      refuse('BADARG order is ' .. tostring(value) .. '; allowed are bands, edf')
    end
    values.order = value
  else
    values[name] = int(i + 1, name, 0, name == 'n' and 9007199254740991 or NEVER)
  end
end
local drops = values.last_layout or values.unused_layout
local layout = values.layout or values.same_layout or drops
local version = values.version
if version and version < S.version then return finish(-S.version) end
if
  layout
  and layout ~= S.layout
  and (
    not drops and not no_tasks()
    or values.unused_layout and in_use()
    or not values.same_layout and redis.call('EXISTS', key('schedules')) == 1
  )
then
  return finish('NOTEMPTY')
end
if values.order and values.order ~= S.order and not no_tasks() then
  if not version then return finish('NOTEMPTY') end
  values.order, reply = nil, 'NOTEMPTY'
end
values.layout, values.same_layout, values.last_layout, values.unused_layout = layout, nil, nil, nil
if values.n and (values.view < S.view or values.view == S.view and values.n <= S.n) then
  values.view, values.n = nil, nil
end
freed = values.capacity ~= nil and values.capacity ~= S.capacity -- there may be room now
for name, value in pairs(values) do
  local of_lanes = string.sub(name, 1, 5) == 'lane_'
  -- The rules of lanes that a record has never had may be others than those its lanes went by.
  if S[name] ~= value or of_lanes and rawget(S, name) == nil then
    set(name, value)
    if name == 'expire_ms' then set('used', now) end
    if of_lanes and reply == 1 then reply = 2 end
  end
end
return finish(reply)
