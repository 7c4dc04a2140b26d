-- due: counts the accounts of a shard whose refreshes fall due in each of the next steps of time;
-- changes nothing. Where many lie between, as :delayed_within: says, so that the cost is bounded.
-- DURABILITY none
-- GROWS   no
-- READS
-- EACH    of several shards of one server in one call
-- KEYS    1 the shard  2 the view
-- ARGV    3 ms of a step
--         4 how many steps
-- RETURNS for each step how many fall due within it, about; those that are due already count as of
--         the first one
open()
local step, steps = int(3, 'step ms', 1000, NEVER), int(4, 'steps', 1, 96)
local due_within, found, before = delayed_within(step * steps), {}, 0
for i = 1, steps do
  local n = due_within(step * i)
  found[i] = math.floor(n) - math.floor(before)
  before = n
end
for word in string.gmatch(S.pris, '%S+') do
  found[1] = found[1] + redis.call('ZCARD', key('ready:' .. word))
end
return finish(found)
