-- tube_numbers: reads the numbers of tubes (see job_numbers), which grow in the order of their
-- first jobs.
-- DURABILITY none
-- GROWS   no
-- KEYS    1 the cluster's prefix `{cluster}`
-- ARGV    1 and 2 as everywhere, not read
--         3… queues that are tubes
-- RETURNS per queue: its number | -1: it has none
local reply = {}
for i = 3, #ARGV do
  reply[#reply + 1] = tonumber(redis.call('HGET', key('tubes'), '+' .. ARGV[i])) or -1
end
return reply
