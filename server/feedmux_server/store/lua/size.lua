-- KEYS[1]: the sizes of a tenant's definitions, by name, and their sum in the field ''.
-- ARGV: name, bytes (0: there is no definition), the most bytes of all definitions
-- Values that feedmux would not have written count as 0, and are corrected as those of an older version are.
local old = number(redis.call('HGET', key, ARGV[1])) or 0
local stored = redis.call('HGET', key, '')
local sum = number(stored) or 0
if stored and not number(stored) then
  local sizes = redis.call('HGETALL', key)
  for i = 1, #sizes, 2 do
    if sizes[i] ~= '' then sum = sum + (number(sizes[i + 1]) or 0) end
  end
end
sum = math.max(sum - old + tonumber(ARGV[2]), 0)
if tonumber(ARGV[2]) > old and sum > tonumber(ARGV[3]) then return {'FULL'} end
if ARGV[2] == '0' then
  redis.call('HDEL', key, ARGV[1])
else
  redis.call('HSET', key, ARGV[1], ARGV[2])
end
if sum > 0 then redis.call('HSET', key, '', int(sum)) else redis.call('HDEL', key, '') end
return {'OK'}
